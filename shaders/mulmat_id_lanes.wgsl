// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for devices whose lanes are a CPU's: a
// lane takes ROWS rows of one expert and COLS pairs of a token and this expert.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import fours/own as fours
// @import chosen/each as ids
// @import lib/expert_task
// @import lib/grid

const WG: u32 = 8u;
const ROWS: u32 = 2u;
const COLS: u32 = 1u;

struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32,
    first_row: u32, weights_rows: u32, x_offset: u32, ids_offset: u32, tiles: u32, pairs: u32,
    bias_offset: u32, ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// Lanes whose rows are of another part read the last row and store nothing.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let task = task_of(group_index(group, groups), WG * ROWS);
    if !task.is_there {
        return;
    }
    let local = task.local + lane;
    let last = params.weights_rows - 1u;
    // Parameters are loaded outside of loops, where a rasteriser would load them in every turn.
    let turns = params.groups;
    var starts: array<u32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        starts[r] = min(local + r * WG, last) * turns;
    }
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        columns[c] = params.x_offset / 4u + x_row(ids_pair(task.tile, c)) * turns * 8u;
    }
    var sums: array<f32, ROWS * COLS>;
    for (var g = 0u; g < turns; g++) {
        var values: array<array<vec4<f32>, 8>, ROWS>;
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            var row_values: array<vec4<f32>, 8>;
            weights_load32(starts[r] + g, &row_values);
            values[r] = row_values;
        }
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let fours_c = fours_at(columns[c] + g * 8u, lane);
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                // @unroll
                for (var r = 0u; r < ROWS; r++) {
                    sums[r * COLS + c] += dot(values[r][k], fours_c[k]);
                }
            }
        }
    }
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let pair = ids_pair(task.tile, c);
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let row = task.row + lane + r * WG;
            if pair < params.pairs && row < params.m && local + r * WG <= last {
                y[pair * params.m + row] = with_bias(sums[r * COLS + c], task.expert, row);
            }
        }
    }
}
