// A group of MXFP4: words of quants, and its exponent.
// @import lib/group
// @import lib/sixteen_group

// FP4 doubled, and 12 more.
const FP4_ABOVE: vec4<u32> = vec4<u32>(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);

// 2^(exponent - 128) by its bits; the two smallest are below the normal numbers.
fn mxfp4_group(quants: vec4<u32>, exponent: u32) -> Group {
    let bits = select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u);
    let scale = bitcast<f32>(bits);
    return sixteen_group(nibble_group(quants, scale, 12.0 * scale), FP4_ABOVE);
}
