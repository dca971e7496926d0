// What a work group of a product by the chosen expert makes: some rows of an expert for a tile of pairs.
// Experts lie one below the other; `first_row` is the first row of all that this part of the weights
// holds. The importing file has `ids`, a file of chosen/, and the fields that are named here.
// @import bias/none as bias

const ADDS: bool = false;

struct Task { tile: u32, expert: u32, row: u32, local: u32, is_there: bool }

// `row` is the first of the rows in its expert, `local` in the part; rows of another part wrap around
// to large numbers. There is no task where nobody chose, nor where all rows are of another part.
fn task_of(index: u32, rows: u32) -> Task {
    let place = ids_task(index);
    if place.x >= params.tiles || place.y >= params.row_groups {
        return Task();
    }
    let expert = ids_expert(place.x);
    let row = place.y * rows;
    let local = params.skipped + expert * params.m + row - params.first_row;
    let apart = local >= params.weights_rows && 0u - local >= rows;
    return Task(place.x, expert, row, local, expert < params.experts && !apart);
}

// The end of a product: a row of y with the bias of its expert, if there is one.
fn with_bias(sum: f32, expert: u32, row: u32) -> f32 {
    if ADDS {
        return sum + bias_load(params.bias_offset + expert * params.m + row);
    }
    return sum;
}

// Row of x that a pair is about; of a place without a pair that of the last one.
fn x_row(pair: u32) -> u32 {
    let inside = min(pair, params.pairs - 1u);
    return inside / params.used * params.x_used + inside % params.used % params.x_used;
}
