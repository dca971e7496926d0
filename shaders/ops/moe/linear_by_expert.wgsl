// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k]: each row of x times the expert
// chosen for it. A work group takes ROWS rows of one expert and COLS pairs, one after the other; its
// lanes stride over k, and a tree sums them. SOURCES rows of weights make them: with GATED those of a gate
// and of a projection, joined as act(gate) · up.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import lib/experts/each_pair as ids
// @import lib/experts/expert_task
// @import lib/linear/gated
// @import lib/reduce/lane_sums

const WG: u32 = 64u;
const ROWS: u32 = 2u;
const TASK_ROWS: u32 = ROWS;
const SOURCES: u32 = 2u;
const SUMS: u32 = SOURCES;
const COLS: u32 = 1u;
const X_GROUP: u32 = 32u;        // words of x, or values, that are 32 values

fn compute_task(task: Task, lane: u32) {
    compute_pair(task, ids_pair(task.tile, 0u), lane);
    for (var c = 1u; c < COLS; c++) {
        workgroupBarrier();
        compute_pair(task, ids_pair(task.tile, c), lane);
    }
}

fn compute_pair(task: Task, pair: u32, lane: u32) {
    let local = task.local;
    let begin = params.x_offset / X_GROUP * 8u + params.x_offset % X_GROUP * 8u / X_GROUP;
    let x_at = begin + x_row(pair) * params.groups * 8u;
    var sums: array<f32, SUMS>;
    for (var g = lane; g < params.groups; g += WG) {
        var values = array<vec4<f32>, 8>();
        for (var r = 0u; r < SOURCES; r++) {
            let row = local + r % ROWS;
            if row < params.weights_rows && task.row + r % ROWS < params.m {
                weights_load32((row + r / ROWS * params.apart) * params.groups + g, &values);
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
        put(task, lane, pair, joined(lane_sum(lane), lane_sum(SUMS - ROWS + lane)));
    }
}
