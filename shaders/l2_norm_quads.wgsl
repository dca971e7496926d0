// As l2_norm.wgsl, for rows of whole vectors of four.
// @import vec4/f32 as x
// @import lib/grid
// @import team/group as team

const WG: u32 = 64u;

struct Params { rows: u32, cols: u32, x_offset: u32, eps: f32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
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
    let quads = params.cols / 4u;
    let start = params.x_offset / 4u + row * quads;
    var sum = 0.0;
    for (var i = lane; i < quads; i += width) {
        let values = x_load4(start + i);
        sum += dot(values, values);
    }
    let inverse = 1.0 / max(sqrt(team_sum(sum, lane)), params.eps);
    for (var i = lane; i < quads; i += width) {
        y[row * quads + i] = x_load4(start + i) * inverse;
    }
}
