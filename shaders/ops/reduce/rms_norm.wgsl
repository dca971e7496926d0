// y = x / sqrt(mean(x²) + eps) · weight, row by row: one row_reduce a row. With ADDS plus `addend`.
// @import formats/load/f32 as x
// @import formats/load/f32 as weight
// @import lib/reduce/no_addend as addend
// @import lib/reduce/each_row
// @import lib/index/row_start

const WEIGHTED: bool = true;
const ADDS: bool = false;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, x_shape: vec4<u32>,
    x_strides: vec4<u32>, eps: f32, addend_offset: u32,
}

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let start = params.x_offset + row_start(row);
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        let value = x_load(start + i);
        sum += value * value;
    }
    let inverse = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < params.cols; i += width) {
        var value = x_load(start + i) * inverse;
        if WEIGHTED {
            value *= weight_load(params.weight_offset + i);
        }
        if ADDS {
            value += addend_load(params.addend_offset + row * params.cols + i);
        }
        y[row * params.cols + i] = value;
    }
}
