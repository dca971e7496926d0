// IQ1_M: value = (number ± 1/8) · (2 · scale + 1) · d, numbers -1, 0 and 1, a 3-bit scale per 16
// values and the sign of 1/8 per eight. Of 32 values four bytes and four nibbles point to vectors
// of eight numbers, the nibbles' highest bit being the sign. Four halves of words hold four scales
// each, and above them a nibble of d, an f16.

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> buf_grid: array<vec2<u32>>;

fn buf_super(scales: vec2<u32>) -> f32 {
    let low = ((scales.x >> 12u) & 15u) | ((scales.x >> 24u) & 0xf0u);
    let high = ((scales.y >> 4u) & 0xf00u) | ((scales.y >> 16u) & 0xf000u);
    return unpack2x16float(low | high).x;
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let quants = buf_quants[group];
    let high = buf_high[group / 2u] >> ((group & 1u) * 16u);
    let scales = buf_scales[group / 8u];
    let sub = group & 7u;
    let bits = scales[sub / 4u] >> (((sub / 2u) & 1u) * 16u + (sub & 1u) * 6u);
    let scale = buf_super(scales) * vec2<f32>(2u * (vec2<u32>(bits, bits >> 3u) & vec2<u32>(7u)) + 1u);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let high_i = high >> (4u * i);
        let entry_i = buf_grid[((quants >> (8u * i)) & 255u) | ((high_i & 7u) << 8u)];
        let shift_i = select(0.125, -0.125, (high_i & 8u) != 0u);
        let scale_i = scale[i / 2u];
        (*values)[i * 2u] = (vec4<f32>(unpack4xI8(entry_i.x)) + shift_i) * scale_i;
        (*values)[i * 2u + 1u] = (vec4<f32>(unpack4xI8(entry_i.y)) + shift_i) * scale_i;
    }
}
