// y[i] = start + i · step.
// @import store/f32 as y
// @import lib/grid

const WG: u32 = 64u;

struct Params { size: u32, start: f32, step: f32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let at = vec4<f32>(vec4<u32>(i, i + 1u, i + 2u, i + 3u));
        y_store4(i, params.start + at * params.step);
    }
}
