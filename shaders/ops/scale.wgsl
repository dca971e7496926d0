// y = x · factor + bias.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;
const TURNS: u32 = 1u;

struct Params { size: u32, x_offset: u32, factor: f32, bias: f32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var turn = 0u; turn < TURNS; turn++) {
        let i = 4u * turn_index(id, groups, WG, TURNS, turn);
        if i < params.size {
            y_store4(i, x_load4(params.x_offset + i) * params.factor + params.bias);
        }
    }
}
