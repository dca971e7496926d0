// The scores that eight lanes in a row of a subgroup, a cluster, have parts of: the importing file has ROWS and
// KEYS, of which the latter is 4 or 8.
// @import kernels/gpu/lib/cluster_lanes

// Of two numbers a lane keeps the one that its bit says, and adds that of its partner, whose bit differs.
fn halved(clear: f32, full: f32, lane: u32, bit: u32, partner: u32) -> f32 {
    let keeps_full = (lane & bit) != 0u;
    let kept = select(clear, full, keeps_full);
    return kept + subgroupShuffleXor(select(full, clear, keeps_full), partner);
}

// The whole of what the lanes have parts of, for row `r` and the lane's own key, lane % KEYS.
fn own_score(parts: ptr<function, array<f32, ROWS * KEYS>>, r: u32, lane: u32) -> f32 {
    var vec4s: array<f32, 4>;
    // @unroll
    for (var p = 0u; p < 4u; p++) {
        vec4s[p] = (*parts)[r * KEYS + p];
        if KEYS == 8u {
            vec4s[p] = halved((*parts)[r * KEYS + p], (*parts)[r * KEYS + (p + 4u) % KEYS], lane, 4u, 7u);
        }
    }
    let even = halved(vec4s[0], vec4s[2], lane, 2u, 2u);
    let odd = halved(vec4s[1], vec4s[3], lane, 2u, 2u);
    let own = halved(even, odd, lane, 1u, 1u);
    return own + select(subgroupShuffleXor(own, 4u), 0.0, KEYS == 8u);
}
