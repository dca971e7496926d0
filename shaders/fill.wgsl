// y = one value everywhere, given as its bits.
// @import bits_out/word as y
// @import lib/grid

const WG: u32 = 64u;

struct Params { size: u32, bits: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_write4(i, vec4<u32>(params.bits));
    }
}
