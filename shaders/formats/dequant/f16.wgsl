// F16 weights, 32 at a time: eight in a vec4 of words.

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let words_i = buf[group * 4u + i];
        (*values)[i * 2u] = vec4<f32>(unpack2x16float(words_i.x), unpack2x16float(words_i.y));
        (*values)[i * 2u + 1u] = vec4<f32>(unpack2x16float(words_i.z), unpack2x16float(words_i.w));
    }
}
