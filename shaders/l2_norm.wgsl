// y = x / max(√(sum x²), eps), row by row: a team a row.
// @import load/f32 as x
// @import lib/grid
// @import team/group as team

const WG: u32 = 64u;

struct Params { rows: u32, cols: u32, x_offset: u32, eps: f32 }

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
        let value = x_load(start + i);
        sum += value * value;
    }
    let inverse = 1.0 / max(sqrt(team_sum(sum, lane)), params.eps);
    for (var i = lane; i < params.cols; i += width) {
        y[row * params.cols + i] = x_load(start + i) * inverse;
    }
}
