// A work group a row. The importing file brings `group_row`, which all threads of the row's group call,
// and declares `rows` in its `Params`.
// @import lib/index/grid

const WG: u32 = 64u;

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if row < params.rows {
        group_row(row, lane);
    }
}
