// y[i] = start + i · step, whose bits are given: f32 holds no large integers.
// @import formats/store/f32 as y
// @import lib/index/grid

alias Value = f32;
const WG: u32 = 64u;

struct Params { size: u32, start: u32, step: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let at = vec4<Value>(vec4<u32>(i, i + 1u, i + 2u, i + 3u));
        y_store4(i, bitcast<Value>(params.start) + at * bitcast<Value>(params.step));
    }
}
