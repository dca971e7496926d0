// y = x / sqrt(mean(x²) + eps) · weight in eight bits, row by row: one row_reduce a row. A second row
// follows each: what rounding to the first leaves.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/reduce/each_row
// @import lib/q8/q8
// @import lib/q8/q8_store

const WEIGHTED: bool = true;

struct Params { rows: u32, groups: u32, x_offset: u32, weight_offset: u32, eps: f32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let start = params.x_offset / 4u + row * params.groups * 8u;
    var squares = vec4<f32>(0.0);
    for (var i = lane; i < params.groups * 8u; i += width) {
        let values = x_load4(start + i);
        squares += values * values;
    }
    let sum = row_reduce_sum(squares.x + squares.y + squares.z + squares.w, lane);
    let inverse = 1.0 / sqrt(sum / f32(params.groups * 32u) + params.eps);
    for (var g = lane; g < params.groups; g += width) {
        var values = array<vec4<f32>, 8>();
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            values[k] = x_load4(start + g * 8u + k) * inverse;
            if WEIGHTED {
                values[k] *= weight_load4(params.weight_offset / 4u + g * 8u + k);
            }
        }
        let packed = q8_group(&values);
        let at = 2u * row * params.groups + g;
        let all = 2u * params.rows * params.groups;
        q8_store(at, all, packed);
        q8_subtract(&values, packed);
        q8_store(at + params.groups, all, q8_group(&values));
    }
}
