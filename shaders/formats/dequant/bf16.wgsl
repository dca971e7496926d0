// BF16 weights, 32 at a time: eight in a vec4 of words, each the upper half of an f32.

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

fn buf_spread(low: u32, high: u32) -> vec4<f32> {
    let bits = vec4<u32>(low << 16u, low, high << 16u, high);
    return bitcast<vec4<f32>>(bits & vec4<u32>(0xffff0000u));
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let words_i = buf[group * 4u + i];
        (*values)[i * 2u] = buf_spread(words_i.x, words_i.y);
        (*values)[i * 2u + 1u] = buf_spread(words_i.z, words_i.w);
    }
}
