// y = apply(a, b), value by value with broadcasting: four an iteration. The op's file brings `apply`.
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/index/strided
// @import lib/elementwise/values

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
const A_DENSE: bool = true;
const B_DENSE: bool = true;
const B_WRAPS: bool = false;   // b repeats whole, as a row does: a multiple of four values

struct Params {
    size: u32,
    a_offset: u32,
    b_offset: u32,
    b_size: u32,
    shape: vec4<u32>,
    a_strides: vec4<u32>,
    b_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Surplus lanes of the last thread read element zero: no index leaves a tensor.
fn inside(i: u32, at: vec4<u32>) -> vec4<u32> {
    let lanes = vec4<u32>(i, i + 1u, i + 2u, i + 3u);
    return select(vec4<u32>(0u), at, lanes < vec4<u32>(params.size));
}

fn a_values(i: u32) -> vec4<Value> {
    if A_DENSE {
        return a_load4(params.a_offset + i);
    }
    let at = inside(i, strided4(i, params.shape, params.a_strides));
    return a_gather4(vec4<u32>(params.a_offset) + at);
}

fn b_values(i: u32) -> vec4<Value> {
    if B_DENSE {
        return b_load4(params.b_offset + i);
    }
    if B_WRAPS {
        return b_load4(params.b_offset + i % params.b_size);
    }
    let at = inside(i, strided4(i, params.shape, params.b_strides));
    return b_gather4(vec4<u32>(params.b_offset) + at);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, apply(a_values(i), b_values(i)));
        }
    }
}
