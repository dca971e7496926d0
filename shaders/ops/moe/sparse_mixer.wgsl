// y[t, u] = 1 / sum_e exp(x[t, e] - best), best = x[t, ids[t, u]], over the experts e that are no better
// and worse by no more than `margin` of a score: a thread makes the weight of a chosen expert.
// @import formats/load/f32 as x
// @import lib/experts/expert_of
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, experts: u32, used: u32, margin: f32, x_offset: u32, ids_offset: u32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let row = params.x_offset + i / params.used * params.experts;
    let best = x_load(row + min(expert_of(i), params.experts - 1u));
    var sum = 0.0;
    for (var e = 0u; e < params.experts; e++) {
        let score = x_load(row + e);
        let below = best - score;
        if below >= 0.0 && below <= params.margin * max(abs(score), best) {
            sum += exp(-below);
        }
    }
    y[i] = 1.0 / sum;
}
