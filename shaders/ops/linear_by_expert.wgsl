// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k]: each row of x times the expert
// chosen for it. A work group takes ROWS rows of one expert, its lanes stride over k, and a tree
// sums them.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import lib/experts/each_pair as ids
// @import lib/experts/expert_task
// @import lib/reduce/lane_sums

const WG: u32 = 64u;
const ROWS: u32 = 2u;
const TASK_ROWS: u32 = ROWS;
const SUMS: u32 = ROWS;

fn compute_task(task: Task, lane: u32) {
    let local = task.local;
    let x_at = params.x_offset / 4u + x_row(task.tile) * params.groups * 8u;
    var sums: array<f32, ROWS>;
    for (var g = lane; g < params.groups; g += WG) {
        var values: array<vec4<f32>, 8>;
        for (var r = 0u; r < ROWS; r++) {
            if local + r < params.weights_rows {
                weights_load32((local + r) * params.groups + g, &values);
                var part = vec4<f32>(0.0);
                // @unroll
                for (var k = 0u; k < 8u; k++) {
                    part += values[k] * x_load4(x_at + g * 8u + k);
                }
                sums[r] += part.x + part.y + part.z + part.w;
            }
        }
    }
    add_up_lanes(&sums, lane);
    if lane < ROWS {
        put(task, lane, ids_pair(task.tile, 0u), lane_sum(lane));
    }
}
