// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for a few tokens: a work group takes
// ROWS rows of the expert that a pair chose, from SOURCES of weights: with GATED those of a gate
// and of a projection, joined as act(gate) · up. Its lanes stride over k, a share of a row each. A
// lane loads the words of all its rows before it unpacks any.
// @import kernels/gpu/share/values as share
// @import formats/vec4/f32 as x
// @import lib/experts/each_pair as ids
// @import lib/experts/task
// @import lib/linear/gated
// @import kernels/gpu/prologue/values as prologue
// @import kernels/gpu/table/none as table
// @import kernels/gpu/lib/lane_sums_workgroup as lanes

const WG: u32 = 64u;
const LANES: u32 = WG;
const ROWS: u32 = 2u;
const TASK_ROWS: u32 = ROWS;
const SOURCES: u32 = 2u;
const SUMS: u32 = 2u;

fn compute(group: vec3<u32>, groups: vec3<u32>, lane: u32) {
    table_fill(lane);
    let task = task_of(group_index(group, groups));
    if task.is_there {
        compute_task(task, lane);
    }
}

fn compute_task(task: Task, lane: u32) {
    let column = params.x_offset / 4u + x_row(task.tile) * params.groups * 8u;
    var rows: array<u32, SOURCES>;
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        // Surplus rows, and those of another part, repeat the last one and are not stored.
        let row_r = min(task.local + r % ROWS + r / ROWS * params.apart, params.weights_rows - 1u);
        rows[r] = row_r * params.groups * 8u / share_VECTORS;
    }
    var sums: array<f32, SUMS>;
    for (var i = lane; i < params.groups * 8u / share_VECTORS; i += WG) {
        var words = array<weights_Words, SOURCES>();
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            words[r] = weights_words(rows[r] + i);
        }
        let values = share_column(column + i * share_VECTORS, i * share_VECTORS);
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            sums[r] = share_product(words[r], rows[r] + i, lane, values, sums[r]);
        }
    }
    lanes_add_up(&sums, lane);
    if lane < ROWS {
        put(task, lane, task.tile, joined(lanes_sum(0u, lane), lanes_sum(0u, SUMS - ROWS + lane)));
    }
}
