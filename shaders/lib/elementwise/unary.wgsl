// y = apply(x), value by value: four an iteration. The op's own file brings `apply`.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/index/strided
// @import lib/elementwise/values

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
const DENSE: bool = true;

struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

fn x_values(i: u32) -> vec4<Value> {
    if DENSE {
        return x_load4(params.x_offset + i);
    }
    // The last vec4_index's surplus lanes read element zero: no index leaves the tensor.
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    let at = strided4(i, params.shape, params.x_strides);
    let inside = select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
    return x_gather4(vec4<u32>(params.x_offset) + inside);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, apply(x_values(i)));
        }
    }
}
