// y = x with more around it: a number, or values of x. Coordinates run through a cycle, after which
// values come again.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const MODE: u32 = 0u;
const CONSTANT: u32 = 0u;
const EDGE: u32 = 1u;
const REFLECT: u32 = 2u;
const SYMMETRIC: u32 = 3u;

struct Params {
    size: u32, x_offset: u32, low: u32, high: u32, shape: vec4<u32>, start: vec4<u32>,
    before: vec4<u32>, cycle: vec4<u32>, x_shape: vec4<u32>, x_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Value `i` of the result.
fn value(i: u32) -> vec2<u32> {
    let place = coordinates(min(i, params.size - 1u), params.shape);
    let last = params.x_shape - 1u;
    var at: vec4<u32>;
    if MODE == CONSTANT {
        at = place - params.before;  // below zero it wraps around
        if any(at >= params.x_shape) {
            return vec2<u32>(params.low, params.high);
        }
    } else if MODE == EDGE {
        at = min(max(place, params.before) - params.before, last);
    } else {
        at = (place + params.start) % params.cycle;
        if MODE == REFLECT {
            at = select(at, params.cycle - at, at > last);
        } else if MODE == SYMMETRIC {
            at = select(at, params.cycle - 1u - at, at > last);
        }
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
