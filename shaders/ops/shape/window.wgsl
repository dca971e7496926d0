// y[at] = x[at + start]: a window of x, which goes on beyond its ends as zeros, or by repeating.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const REPEATED: bool = false;

struct Params {
    size: u32, x_offset: u32, shape: vec4<u32>, start: vec4<u32>, x_shape: vec4<u32>,
    x_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Value `i` of the result. Starts below zero wrap around, and end up outside.
fn value(i: u32) -> vec2<u32> {
    var at = coordinates(min(i, params.size - 1u), params.shape) + params.start;
    if REPEATED {
        at %= params.x_shape;
    } else if any(at >= params.x_shape) {
        return vec2<u32>(0u);
    }
    return x_load(params.x_offset + steps(at, params.x_strides));
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
    }
}
