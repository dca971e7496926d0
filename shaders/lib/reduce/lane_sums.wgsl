// What the lanes of a work group sum, SUMS numbers each, added up by a tree through workgroup memory. The
// importing file declares `WG`, a power of two, and `SUMS`.

var<workgroup> lane_sums: array<f32, WG * SUMS>;

fn add_up_lanes(own: ptr<function, array<f32, SUMS>>, lane: u32) {
    for (var i = 0u; i < SUMS; i++) {
        lane_sums[i * WG + lane] = (*own)[i];
    }
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half {
            for (var i = 0u; i < SUMS; i++) {
                lane_sums[i * WG + lane] += lane_sums[i * WG + lane + half];
            }
        }
        workgroupBarrier();
    }
}

// The i-th sum, once lanes are added up.
fn lane_sum(i: u32) -> f32 {
    return lane_sums[i * WG];
}
