// A group of Q2_K: words of quants, the two bytes of its scales and minima, and d and dmin.
// @import lib/blocks/group
// @import lib/blocks/packed_bits2

fn q2_k_group(quants: vec2<u32>, bytes: u32, supers: vec2<f32>) -> Group {
    let both = vec4<u32>(bytes, bytes >> 8u, bytes >> 4u, bytes >> 12u) & vec4<u32>(15u);
    let scale = vec4<f32>(both) * supers.xxyy;
    return Group(packed_bits2(quants.x), packed_bits2(quants.y), scale.xy, scale.zw);
}
