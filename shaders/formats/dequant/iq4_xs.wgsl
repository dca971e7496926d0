// IQ4_XS: value = number · (scale - 32) · d, one of 16 numbers, a 6-bit scale per 32 values and an
// f16 d per 256. Two words hold d, the high two bits of eight scales, and their low nibbles.
// @import lib/blocks/sixteen

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<vec2<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let packed = buf_scales[group / 8u];
    let sub = group & 7u;
    let quant = ((packed.y >> (4u * sub)) & 15u) | (((packed.x >> (16u + 2u * sub)) & 3u) << 4u);
    let scale = unpack2x16float(packed.x).x * (f32(quant) - 32.0);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = sixteen(IQ4_NUMBERS, words[i] & 0x0f0f0f0fu) * scale;
        (*values)[i + 4u] = sixteen(IQ4_NUMBERS, (words[i] >> 4u) & 0x0f0f0f0fu) * scale;
    }
}
