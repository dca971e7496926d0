// As rms_norm.wgsl, for rows of whole vectors of four that begin at one.
// @import vec4/f32 as x
// @import vec4/f32 as weight
// @import lib/grid
// @import team/group as team
// @import lib/row_start

const WG: u32 = 64u;
const WEIGHTED: bool = true;

struct Params {
    rows: u32, cols: u32, x_offset: u32, weight_offset: u32, x_shape: vec4<u32>,
    x_strides: vec4<u32>, eps: f32,
}

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
    let start = (params.x_offset + row_start(row)) / 4u;
    var sum = 0.0;
    for (var i = lane; i < quads; i += width) {
        let values = x_load4(start + i);
        sum += dot(values, values);
    }
    let inverse = 1.0 / sqrt(team_sum(sum, lane) / f32(params.cols) + params.eps);
    for (var i = lane; i < quads; i += width) {
        var values = x_load4(start + i) * inverse;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        y[row * quads + i] = values;
    }
}
