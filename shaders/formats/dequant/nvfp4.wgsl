// NVFP4: value = number · scale / 2, an FP4 number (doubled) and per 16 an FP8 scale: four bits of
// exponent, three of mantissa, no sign. Quants lie as in Q4_0.
// @import lib/blocks/fp4

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_half_scale(byte: u32) -> f32 {
    let exponent = (byte >> 3u) & 15u;
    let small = f32(byte & 7u) * 0.0009765625;
    let normal = bitcast<f32>(((exponent + 119u) << 23u) | ((byte & 7u) << 20u));
    return select(select(normal, small, exponent == 0u), 0.0, byte == 127u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let above = fp4_above(buf_quants[group]);
    let pair = buf_scales[group / 2u] >> ((group & 1u) * 16u);
    let first = buf_half_scale(pair & 255u);
    let second = buf_half_scale((pair >> 8u) & 255u);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = fp4_doubled(above.low[i]) * first;
        (*values)[i + 4u] = fp4_doubled(above.high[i]) * second;
    }
}
