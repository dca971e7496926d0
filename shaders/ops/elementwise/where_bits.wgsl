// y = a where the condition is true, else b, as the bits lie, value by value, with broadcasting.
// @import formats/load/bool as condition
// @import formats/bits_load/wide as a
// @import formats/bits_load/wide as b
// @import formats/bits_store4/wide as y
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

// Value `i` of the result; lanes beyond the end repeat the last one.
fn value(i: u32) -> vec2<u32> {
    let k = min(i, params.size - 1u);
    let place = strided(k, params.shape, params.condition_strides);
    if condition_load(params.condition_offset + place) != 0u {
        return a_load(params.a_offset + strided(k, params.shape, params.a_strides));
    }
    return b_load(params.b_offset + strided(k, params.shape, params.b_strides));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
        }
    }
}
