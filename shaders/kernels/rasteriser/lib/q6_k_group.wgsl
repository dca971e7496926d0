// A group of Q6_K: words of the lower bits, of the upper two, the scales of its super-block, and d.
// @import lib/blocks/group
// @import lib/blocks/packed_bits2

fn q6_k_group(low: vec4<u32>, high: vec2<u32>, scales: vec4<u32>, d: f32, place: u32) -> Group {
    let both = unpack4xI8(scales[place / 2u] >> ((place & 1u) * 16u));
    let scale = vec2<f32>(both.xy) * d;
    let nibbles = nibble_group(low, 0.0, 0.0);
    return Group(
        nibbles.low | (packed_bits2(high.x) << vec4<u32>(4u)),
        nibbles.high | (packed_bits2(high.y) << vec4<u32>(4u)),
        scale,
        32.0 * scale,
    );
}
