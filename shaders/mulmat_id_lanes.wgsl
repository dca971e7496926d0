// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for devices whose lanes are a CPU's: a
// lane takes ROWS rows of one expert, and vectors of x have an index that is the same in all lanes.
// Experts lie one below the other; `first_row` is the first row of all that this part holds.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import lib/grid

const WG: u32 = 8u;
const ROWS: u32 = 2u;

struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32,
    first_row: u32, weights_rows: u32, x_offset: u32, ids_offset: u32, pairs: u32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    let pair = index / params.row_groups;
    if pair >= params.pairs {
        return;
    }
    let token = pair / params.used;
    let slot = pair % params.used;
    let chosen = token * params.ids_strides.z + slot * params.ids_strides.w;
    let expert = u32(ids[params.ids_offset + chosen]);
    if expert >= params.experts {
        return;
    }
    let first = (index % params.row_groups) * (WG * ROWS) + lane;
    // Rows of another part wrap around to large numbers; such lanes read the last row and store
    // nothing.
    let local = params.skipped + expert * params.m + first - params.first_row;
    let last = params.weights_rows - 1u;
    let x_row = token * params.x_used + slot % params.x_used;
    let x_at = params.x_offset / 4u + x_row * params.groups * 8u;
    var sums: array<f32, ROWS>;
    for (var g = 0u; g < params.groups; g++) {
        var values: array<array<vec4<f32>, 8>, ROWS>;
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            var row_values: array<vec4<f32>, 8>;
            let row_r = min(local + r * WG, last);
            weights_load32(row_r * params.groups + g, &row_values);
            values[r] = row_values;
        }
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            let x_k = x_load4(x_at + g * 8u + k);
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                sums[r] += dot(values[r][k], x_k);
            }
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if first + r * WG < params.m && local + r * WG <= last {
            y[pair * params.m + first + r * WG] = sums[r];
        }
    }
}
