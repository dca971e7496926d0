// A group of MXFP4: words of quants, and its exponent.
// @import lib/blocks/fp4
// @import lib/blocks/group

// 2^(exponent - 128) by its bits; the two smallest are below the normal numbers.
fn mxfp4_group(quants: vec4<u32>, exponent: u32) -> Group {
    let above = fp4_above(quants);
    let bits = select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u);
    let scale = bitcast<f32>(bits);
    return Group(above.low, above.high, vec2<f32>(scale), vec2<f32>(12.0 * scale));
}
