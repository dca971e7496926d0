// y = one value everywhere, given as its bits.
// @import formats/bits_store4/word as y
// @import lib/index/grid

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;

struct Params { size: u32, low: u32, high: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var item = 0u; item < ITEMS_PER_THREAD; item++) {
        let i = 4u * item_index(id, groups, WG, ITEMS_PER_THREAD, item);
        if i < params.size {
            let bits = vec2<u32>(params.low, params.high);
            y_store4(i, bits, bits, bits, bits);
        }
    }
}
