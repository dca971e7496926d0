// y = x, element by element into a dense tensor, converting between types on the way.
// @import load/f32 as x
// @import store/f32 as y
// @import lib/grid
// @import lib/strided

const WG: u32 = 64u;

struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.size {
        return;
    }
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    let at = strided4(i, params.shape, params.x_strides);
    let inside = select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
    y_store4(i, x_gather4(vec4<u32>(params.x_offset) + inside));
}
