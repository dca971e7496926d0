// y = one value everywhere, given as its bits.
// @import bits_out/word as y
// @import lib/grid

const WG: u32 = 64u;

struct Params { size: u32, low: u32, high: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let bits = vec2<u32>(params.low, params.high);
        y_store4(i, bits, bits, bits, bits);
    }
}
