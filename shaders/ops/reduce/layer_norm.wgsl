// y = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias, row by row: one row_reduce a row.
// @import formats/load/f32 as x
// @import formats/load/f32 as weight
// @import formats/load/f32 as bias
// @import lib/reduce/each_row

const WEIGHTED: bool = true;
const BIASED: bool = true;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, bias_offset: u32, eps: f32,
}

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let start = params.x_offset + row * params.cols;
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        sum += x_load(start + i);
    }
    let mean = row_reduce_sum(sum, lane) / f32(params.cols);
    // A second pass over the differences: E[x²] - E[x]² cancels where the mean is large.
    var squares = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        let difference = x_load(start + i) - mean;
        squares += difference * difference;
    }
    let inverse = 1.0 / sqrt(row_reduce_sum(squares, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < params.cols; i += width) {
        var value = (x_load(start + i) - mean) * inverse;
        if WEIGHTED {
            value *= weight_load(params.weight_offset + i);
        }
        if BIASED {
            value += bias_load(params.bias_offset + i);
        }
        y[row * params.cols + i] = value;
    }
}
