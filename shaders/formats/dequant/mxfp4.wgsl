// MXFP4: value = number · 2^(exponent - 128), an FP4 number (doubled, hence 128) and a byte of
// exponent per 32. Quants lie as in Q4_0.
// @import lib/blocks/fp4

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

// 2^(exponent - 128) by its bits; the two smallest are below the normal numbers.
fn buf_scale(group: u32) -> f32 {
    let exponent = (buf_scales[group / 4u] >> ((group & 3u) * 8u)) & 255u;
    return bitcast<f32>(select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u));
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let above = fp4_above(buf_quants[group]);
    let scale = buf_scale(group);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = fp4_doubled(above.low[i]) * scale;
        (*values)[i + 4u] = fp4_doubled(above.high[i]) * scale;
    }
}
