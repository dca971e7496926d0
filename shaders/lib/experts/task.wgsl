// What a work group makes of products by the chosen expert: some rows of an expert for a tile of pairs of
// a token and this expert. The importing file brings `TASK_ROWS`, the rows of a task, and as `ids` each_pair
// or tiles.
//
// Experts lie one below the other, from row `skipped` of a weight on, which may lie in several parts:
// `first_row` is the first row of all that this part holds. `each` rows are those of an expert, of which a
// result has `m`, and `apart` rows lie between the gate and the projection that are joined.
// @import lib/linear/no_bias as bias
// @import lib/index/grid

const ADDS: bool = false;

struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32,
    first_row: u32, weights_rows: u32, x_offset: u32, ids_offset: u32, tiles: u32, pairs: u32,
    bias_offset: u32, each: u32, apart: u32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// `row` is the first of the rows in its expert, `local` in the part; rows of another part wrap around
// to large numbers.
struct Task { tile: u32, expert: u32, row: u32, local: u32, is_there: bool }

// There is no task where nobody chose, nor where all rows are of another part.
fn task_of(index: u32) -> Task {
    // A single return: D3D12's compiler refuses barriers that depend on the result of a function
    // with several.
    var task = Task();
    let place = ids_task(index);
    if place.x < params.tiles && place.y < params.row_groups {
        let expert = ids_expert(place.x);
        let row = place.y * TASK_ROWS;
        let local = params.skipped + expert * params.each + row - params.first_row;
        let apart = local >= params.weights_rows && 0u - local >= TASK_ROWS;
        task = Task(place.x, expert, row, local, expert < params.experts && !apart);
    }
    return task;
}

// Row of x that a pair is about; of a place without a pair that of the last one.
fn x_row(pair: u32) -> u32 {
    let inside = min(pair, params.pairs - 1u);
    return inside / params.used * params.x_used + inside % params.used % params.x_used;
}

// Stores the value of a task's row for a pair, with the bias of the expert, if there are such a pair
// and such a row in this part.
fn put(task: Task, offset: u32, pair: u32, sum: f32) {
    let row = task.row + offset;
    if pair >= params.pairs || row >= params.m || task.local + offset >= params.weights_rows {
        return;
    }
    var value = sum;
    if ADDS {
        value += bias_load(params.bias_offset + task.expert * params.m + row);
    }
    y[pair * params.m + row] = value;
}
