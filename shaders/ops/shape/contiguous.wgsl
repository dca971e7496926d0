// y = x, element by element into a dense tensor, as the bits lie.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;

struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

// Value `i` of the result; lanes beyond the end repeat the last one.
fn value(i: u32) -> vec2<u32> {
    let at = coordinates(min(i, params.size - 1u), params.shape);
    return x_load(params.x_offset + steps(at, params.x_strides));
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
