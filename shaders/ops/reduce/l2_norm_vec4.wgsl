// As l2_norm.wgsl, for rows of whole vectors of four.
// @import formats/vec4/f32 as x
// @import lib/reduce/each_row
// @import lib/numeric/nan

struct Params { rows: u32, cols: u32, x_offset: u32, eps: f32 }

@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.cols / 4u;
    let start = params.x_offset / 4u + row * vec4s;
    var sum = 0.0;
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i);
        sum += dot(values, values);
    }
    let length = sqrt(row_reduce_sum(sum, lane));
    let inverse = 1.0 / keep_nan_of(length, max(length, params.eps));
    for (var i = lane; i < vec4s; i += width) {
        y[row * vec4s + i] = x_load4(start + i) * inverse;
    }
}
