// y = a where the condition is true, else b, value by value, with broadcasting.
// @import formats/load/bool as condition
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/index/strided

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;

struct Params {
    size: u32,
    condition_offset: u32,
    a_offset: u32,
    b_offset: u32,
    shape: vec4<u32>,
    condition_strides: vec4<u32>,
    a_strides: vec4<u32>,
    b_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Surplus lanes of the last thread read element zero: no index leaves a tensor.
fn inside(i: u32, strides: vec4<u32>, offset: u32) -> vec4<u32> {
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    let at = strided4(i, params.shape, strides);
    return vec4<u32>(offset) + select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            let chosen = condition_gather4(
                inside(i, params.condition_strides, params.condition_offset)
            );
            let a = a_gather4(inside(i, params.a_strides, params.a_offset));
            let b = b_gather4(inside(i, params.b_strides, params.b_offset));
            y_store4(i, select(b, a, vec4<u32>(chosen) != vec4<u32>(0u)));
        }
    }
}
