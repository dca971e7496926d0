// y = apply(x), value by value: four a thread. The op's own file brings `apply`.
// @import load/f32 as x
// @import store/f32 as y
// @import lib/grid
// @import lib/strided

const WG: u32 = 64u;
const DENSE: bool = true;

struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.size {
        return;
    }
    if DENSE {
        y_store4(i, apply(x_load4(params.x_offset + i)));
    } else {
        // The last thread's surplus lanes read element zero: no index leaves the tensor.
        let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
        let at = strided4(i, params.shape, params.x_strides);
        let inside = select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
        y_store4(i, apply(x_gather4(vec4<u32>(params.x_offset) + inside)));
    }
}
