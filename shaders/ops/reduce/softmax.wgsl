// y = exp(x - max(x)) / sum(exp(x - max(x))), row by row: one row_reduce a row.
// @import formats/load/f32 as x
// @import lib/reduce/each_row
// @import lib/numeric/nan

const LOWEST: f32 = -3.4028234e38;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let start = params.x_offset + row * params.cols;
    var largest = LOWEST;
    for (var i = lane; i < params.cols; i += width) {
        largest = max(largest, x_load(start + i));
    }
    let shift = row_reduce_max(largest, lane);
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        sum += exp(x_load(start + i) - shift);
    }
    let inverse = 1.0 / finite_or_nan(row_reduce_sum(sum, lane));
    for (var i = lane; i < params.cols; i += width) {
        y[row * params.cols + i] = exp(x_load(start + i) - shift) * inverse;
    }
}
