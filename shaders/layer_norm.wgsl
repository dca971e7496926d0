// y = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias, row by row: a team a row.
// @import load/f32 as x
// @import load/f32 as weight
// @import load/f32 as bias
// @import lib/grid
// @import team/group as team

const WG: u32 = 64u;
const WEIGHTED: bool = true;
const BIASED: bool = true;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, bias_offset: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let row = group_index(group, groups);
    if row >= params.rows {
        return;
    }
    let lane = team_lane(index);
    let width = team_width();
    let start = params.x_offset + row * params.cols;
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        sum += x_load(start + i);
    }
    let mean = team_sum(sum, lane) / f32(params.cols);
    // A second pass over the differences: E[x²] - E[x]² cancels where the mean is large.
    var squares = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        let difference = x_load(start + i) - mean;
        squares += difference * difference;
    }
    let inverse = 1.0 / sqrt(team_sum(squares, lane) / f32(params.cols) + params.eps);
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
