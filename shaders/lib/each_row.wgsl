// A team a row. The op's own file brings `compute_row`, which all threads of the row's team call,
// and declares `rows` in its `Params`.
// @import lib/grid
// @import team/group as team

const WG: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let row = group_index(group, groups);
    if row < params.rows {
        compute_row(row, team_lane(index), team_width());
    }
}
