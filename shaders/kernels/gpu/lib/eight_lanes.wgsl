// Kernels of which eight lanes share a group of 32 values, four each. The importing file brings
// `compute_part`, which all lanes call, as they exchange values, the struct Place, and the field size: how
// many groups.
// @import lib/index/grid

const WG: u32 = 64u;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = grid_index(id, groups, WG);
    // Lanes beyond the last group repeat it, and store nothing.
    let group = min(i / 8u, params.size - 1u);
    compute_part(Place(group, params.size, lane % 8u, i / 8u < params.size), lane);
}
