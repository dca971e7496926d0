// F16 weights, 16 bytes at a time: `i` counts vectors along the rows.

const buf_VECTORS: u32 = 2u;

struct buf_Words { words: vec4<u32> }

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

fn buf_words(i: u32) -> buf_Words {
    return buf_Words(buf[i]);
}

fn buf_values(words: buf_Words) -> array<vec4<f32>, buf_VECTORS> {
    let w = words.words;
    return array<vec4<f32>, buf_VECTORS>(
        vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)),
        vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)),
    );
}
