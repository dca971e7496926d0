// As rms_norm.wgsl, for rows of whole vectors of four that begin at one.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/reduce/no_addend as addend
// @import lib/reduce/each_row
// @import lib/index/row_start

const WEIGHTED: bool = true;
const ADDS: bool = false;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, x_shape: vec4<u32>,
    x_strides: vec4<u32>, eps: f32, addend_offset: u32,
}

@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.cols / 4u;
    let start = (params.x_offset + row_start(row)) / 4u;
    var sum = 0.0;
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i);
        sum += dot(values, values);
    }
    let inverse = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < vec4s; i += width) {
        var values = x_load4(start + i) * inverse;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        if ADDS {
            values += addend_load4(params.addend_offset / 4u + row * vec4s + i);
        }
        y[row * vec4s + i] = values;
    }
}
