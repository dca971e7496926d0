// bf16 values, two in a word: the upper half of an f32.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> f32 {
    let word = buf[i / 2u];
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (i & 1u) == 1u));
}

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
