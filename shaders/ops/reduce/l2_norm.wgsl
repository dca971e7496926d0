// y = x / max(√(sum x²), eps), row by row: one row_reduce a row.
// @import formats/load/f32 as x
// @import lib/reduce/each_row
// @import lib/numeric/nan

struct Params { rows: u32, cols: u32, x_offset: u32, eps: f32 }

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let start = params.x_offset + row * params.cols;
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        let value = x_load(start + i);
        sum += value * value;
    }
    let length = sqrt(row_reduce_sum(sum, lane));
    let inverse = 1.0 / keep_nan_of(length, max(length, params.eps));
    for (var i = lane; i < params.cols; i += width) {
        y[row * params.cols + i] = x_load(start + i) * inverse;
    }
}
