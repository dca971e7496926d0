// BF16 weights, 16 bytes at a time: `i` counts vectors along the rows. Each is the upper half of an f32.

const buf_VECTORS: u32 = 2u;

struct buf_Words { words: vec4<u32> }

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

fn buf_words(i: u32) -> buf_Words {
    return buf_Words(buf[i]);
}

fn buf_values(words: buf_Words) -> array<vec4<f32>, buf_VECTORS> {
    let low = bitcast<vec4<f32>>(words.words << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(words.words & vec4<u32>(0xffff0000u));
    return array<vec4<f32>, buf_VECTORS>(
        vec4<f32>(low.x, high.x, low.y, high.y), vec4<f32>(low.z, high.z, low.w, high.w),
    );
}
