// A group of Q3_K: words of quants, their high bits, the scales of its super-block, and d.
// @import lib/blocks/group
// @import lib/blocks/high_bits
// @import lib/blocks/packed_bits2

fn q3_k_group(quants: vec2<u32>, bits: u32, scales: vec3<u32>, d: f32, place: u32) -> Group {
    let low = scales[place / 4u] >> ((place & 3u) * 8u);
    let high = scales.z >> (place * 4u);
    let both = (vec2<u32>(low, low >> 4u) & vec2<u32>(15u))
        | ((vec2<u32>(high, high >> 2u) & vec2<u32>(3u)) << vec2<u32>(4u));
    let scale = (vec2<f32>(both) - 32.0) * d;
    return Group(
        packed_bits2(quants.x) | (sixteen_high_bits(bits) >> vec4<u32>(2u)),
        packed_bits2(quants.y) | (sixteen_high_bits(bits >> 16u) >> vec4<u32>(2u)),
        scale,
        4.0 * scale,
    );
}
