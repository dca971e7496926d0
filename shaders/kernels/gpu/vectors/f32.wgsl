// F32 weights, 16 bytes at a time: `i` counts vectors along the rows.

const buf_VECTORS: u32 = 1u;

struct buf_Words { values: vec4<f32> }

@group(0) @binding(0) var<storage, read> buf: array<vec4<f32>>;

fn buf_words(i: u32) -> buf_Words {
    return buf_Words(buf[i]);
}

fn buf_values(words: buf_Words) -> array<vec4<f32>, buf_VECTORS> {
    return array<vec4<f32>, buf_VECTORS>(words.values);
}
