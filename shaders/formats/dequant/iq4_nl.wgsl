// IQ4_NL: value = number · scale, one of 16 numbers. Blocks lie as in Q4_0.
// @import lib/blocks/half_at
// @import lib/blocks/sixteen

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let scale = half_at(buf_scales[group / 2u], group);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = sixteen(IQ4_NUMBERS, words[i] & 0x0f0f0f0fu) * scale;
        (*values)[i + 4u] = sixteen(IQ4_NUMBERS, (words[i] >> 4u) & 0x0f0f0f0fu) * scale;
    }
}
