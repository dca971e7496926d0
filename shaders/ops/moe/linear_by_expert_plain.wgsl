// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for plain experts with rows of any
// length, one value a thread. Experts lie one below the other; `first_row` is the first row of all
// that this part holds.
// @import formats/load/f32 as weights
// @import formats/load/f32 as x
// @import lib/experts/expert_of
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, m: u32, k: u32, experts: u32, used: u32, x_used: u32, skipped: u32, first_row: u32,
    weights_rows: u32, x_offset: u32, ids_offset: u32, ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let pair = i / params.m;
    let expert = expert_of(pair);
    let local = params.skipped + expert * params.m + i % params.m - params.first_row;
    if expert >= params.experts || local >= params.weights_rows {
        return;
    }
    let x_row = pair / params.used * params.x_used + pair % params.used % params.x_used;
    let at = params.x_offset + x_row * params.k;
    var sum = 0.0;
    for (var k = 0u; k < params.k; k++) {
        sum += weights_load(local * params.k + k) * x_load(at + k);
    }
    y[i] = sum;
}
