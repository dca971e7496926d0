// A task of a product by the chosen expert on a device whose lanes are a CPU's: a lane takes ROWS of its
// rows, a work group's width apart, and COLS pairs.
// @import lib/experts/expert_task

const TASK_ROWS: u32 = WG * ROWS;

// Where a lane's rows of weights begin, each of `width` groups. In place of rows of another part,
// which `put` leaves alone, the last one is read.
fn row_starts(task: Task, lane: u32, width: u32) -> array<u32, ROWS> {
    var starts: array<u32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        starts[r] = min(task.local + lane + r * WG, params.weights_rows - 1u) * width;
    }
    return starts;
}

// Where the rows of x begin that the pairs of a tile are about, the first row of all at `first`.
fn column_starts(task: Task, first: u32, width: u32) -> array<u32, COLS> {
    var starts: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        starts[c] = first + x_row(ids_pair(task.tile, c)) * width;
    }
    return starts;
}

fn put_all(task: Task, lane: u32, sums: array<f32, ROWS * COLS>) {
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let pair = ids_pair(task.tile, c);
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            put(task, lane + r * WG, pair, sums[r * COLS + c]);
        }
    }
}
