// y = x, at least `low` and at most `high`, integers.
// @import formats/load/i32 as x
// @import formats/store/i32 as y
// @import lib/index/grid

alias Value = i32;
const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;

struct Params { size: u32, x_offset: u32, low: u32, high: u32 }   // the bounds by their bits

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            let low = vec4<Value>(bitcast<Value>(params.low));
            let high = vec4<Value>(bitcast<Value>(params.high));
            y_store4(i, clamp(x_load4(params.x_offset + i), low, high));
        }
    }
}
