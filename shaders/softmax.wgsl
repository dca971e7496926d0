// y = exp(x - max(x)) / sum(exp(x - max(x))), row by row: a team a row.
// @import load/f32 as x
// @import lib/grid
// @import lib/nan
// @import team/group as team

const WG: u32 = 64u;
const LOWEST: f32 = -3.4028234e38;

struct Params { rows: u32, cols: u32, x_offset: u32 }

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
    var largest = LOWEST;
    for (var i = lane; i < params.cols; i += width) {
        largest = max(largest, x_load(start + i));
    }
    let shift = team_max(largest, lane);
    var sum = 0.0;
    for (var i = lane; i < params.cols; i += width) {
        sum += exp(x_load(start + i) - shift);
    }
    let inverse = 1.0 / finite_or_nan(team_sum(sum, lane));
    for (var i = lane; i < params.cols; i += width) {
        y[row * params.cols + i] = exp(x_load(start + i) - shift) * inverse;
    }
}
