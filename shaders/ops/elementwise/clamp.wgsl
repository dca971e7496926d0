// y = x, at least `low` and at most `high`; NaN stays NaN.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/numeric/nan

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;

struct Params { size: u32, x_offset: u32, low: f32, high: f32 }

@group(0) @binding(0) var<uniform> params: Params;

fn apply(x: vec4<f32>, low: f32, high: f32) -> vec4<f32> {
    let above = select(x, vec4<f32>(low), x < vec4<f32>(low));
    return keep_nan(x, select(above, vec4<f32>(high), above > vec4<f32>(high)));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            y_store4(i, apply(x_load4(params.x_offset + i), params.low, params.high));
        }
    }
}
