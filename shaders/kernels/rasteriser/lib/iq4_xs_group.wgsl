// A group of IQ4_XS: words of quants, and the two words that its super-block has of scales and d.
// @import lib/blocks/group
// @import lib/blocks/sixteen
// @import kernels/rasteriser/lib/sixteen_group

fn iq4_xs_group(quants: vec4<u32>, scales: vec2<u32>, place: u32) -> Group {
    let low = (scales.y >> (4u * place)) & 15u;
    let high = (scales.x >> (16u + 2u * place)) & 3u;
    let scale = unpack2x16float(scales.x).x * (f32(low | (high << 4u)) - 32.0);
    return sixteen_group(nibble_group(quants, scale, 0.0), IQ4_NUMBERS);
}
