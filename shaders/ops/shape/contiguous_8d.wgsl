// y = x, element by element into a dense tensor, as the bits lie: up to eight axes, in two vectors.
// Strides may be negative, as numbers that wrap around; `start` is then where the first value lies.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
// There are more axes than four.
const OUTER: bool = true;

struct Params {
    size: u32,
    x_offset: u32,
    start: u32,
    inner: u32,
    outer_shape: vec4<u32>,
    outer_strides: vec4<u32>,
    inner_shape: vec4<u32>,
    inner_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Value `index` of the result; lanes beyond the end repeat the last one.
fn value(index: u32) -> vec2<u32> {
    var i = min(index, params.size - 1u);
    var at = params.x_offset + params.start;
    if OUTER {
        at += steps(coordinates(i / params.inner, params.outer_shape), params.outer_strides);
        i %= params.inner;
    }
    return x_load(at + steps(coordinates(i, params.inner_shape), params.inner_strides));
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
