// As softmax.wgsl, for rows of whole vectors of four, which it reads once less.
// @import formats/vec4/f32 as x
// @import lib/reduce/each_row
// @import lib/numeric/nan

const LOWEST: f32 = -3.4028234e38;

struct Params { rows: u32, cols: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.cols / 4u;
    let start = params.x_offset / 4u + row * vec4s;
    // Sums follow the largest value so far: one reading of the row instead of two. (Milakov &
    // Gimelshein 2018, "Online normalizer calculation for softmax")
    var largest = vec4<f32>(LOWEST);
    var sums = vec4<f32>();
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i);
        let above = values - largest;
        let ratio = exp(-abs(above));
        sums = select(sums + ratio, sums * ratio + 1.0, above > vec4<f32>());
        largest = max(largest, values);
    }
    let pair = max(largest.xy, largest.zw);
    let shift = row_reduce_max(max(pair.x, pair.y), lane);
    let inverse = 1.0 / finite_or_nan(row_reduce_sum(dot(sums, exp(largest - shift)), lane));
    for (var i = lane; i < vec4s; i += width) {
        y[row * vec4s + i] = exp(x_load4(start + i) - shift) * inverse;
    }
}
