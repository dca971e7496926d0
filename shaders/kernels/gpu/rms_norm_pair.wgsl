// As rms_norm_pair.wgsl, a work group a row, whose groups of 32 values eight lanes share.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/reduce/each_row
// @import kernels/gpu/lib/round_q8 as rounding
// @import kernels/gpu/lib/eight_lanes_subgroup as eight

const WEIGHTED: bool = true;

struct Params { rows: u32, groups: u32, x_offset: u32, weight_offset: u32, eps: f32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let vec4s = params.groups * 8u;
    let start = params.x_offset / 4u + row * vec4s;
    var sum = 0.0;
    for (var i = lane; i < vec4s; i += width) {
        let values = x_load4(start + i);
        sum += dot(values, values);
    }
    let inverse = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(vec4s * 4u) + params.eps);
    // All lanes take as many iterations, as they exchange values. Eight that share a group are in it together.
    for (var begin = 0u; begin < vec4s; begin += width) {
        let i = begin + lane;
        let at = min(i, vec4s - 1u);
        var values = x_load4(start + at) * inverse;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + at);
        }
        let all = 2u * params.rows * params.groups;
        let first = 2u * row * params.groups + i / 8u;
        let left = put_rounded(Place(first, all, i % 8u, i < vec4s), values, lane);
        put_rounded(Place(first + params.groups, all, i % 8u, i < vec4s), left, lane);
    }
}

// Store what eight lanes round together, and give what that leaves of a lane's values.
fn put_rounded(place: Place, values: vec4<f32>, lane: u32) -> vec4<f32> {
    let by = rounding_put(place, values, values, lane);
    return values - vec4<f32>(q8_quants(values, by)) * bitcast<f32>(by.given);
}
