// As layer_norm.wgsl, for rows of whole vectors of four, which it reads once less.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import formats/vec4/f32 as bias
// @import lib/reduce/each_row

const WEIGHTED: bool = true;
const BIASED: bool = true;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, bias_offset: u32, eps: f32,
}

@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.cols / 4u;
    let start = params.x_offset / 4u + row * vec4s;
    // Mean of what was read, and squared distances from it, in one reading (Welford 1962) by each
    // component of each thread; theirs are then joined (Chan, Golub & LeVeque 1979).
    var count = 0.0;
    var means = vec4<f32>();
    var squares = vec4<f32>();
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i);
        let differences = values - means;
        count += 1.0;
        means += differences * (1.0 / count);
        squares += differences * (values - means);
    }
    let ones = vec4<f32>(1.0);
    let mean = row_reduce_sum(count * dot(means, ones), lane) / f32(params.cols);
    let between = means - mean;
    let distance = dot(squares, ones) + count * dot(between, between);
    let inverse = 1.0 / sqrt(row_reduce_sum(distance, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < vec4s; i += width) {
        var values = (x_load4(start + i) - mean) * inverse;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        if BIASED {
            values += bias_load4(params.bias_offset / 4u + i);
        }
        y[row * vec4s + i] = values;
    }
}
