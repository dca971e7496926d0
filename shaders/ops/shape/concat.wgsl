// y = a followed by b along one axis; both are seen as (outer, middle, inner).
// @import formats/bits_load/word as a
// @import formats/bits_load/word as b
// @import formats/bits_store4/word as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, inner: u32, a_middle: u32, b_middle: u32, a_offset: u32, b_offset: u32 }

@group(0) @binding(0) var<uniform> params: Params;

// Value `i` of the result; lanes beyond the end repeat the last one.
fn value(i: u32) -> vec2<u32> {
    let at = min(i, params.size - 1u);
    let middle = (at / params.inner) % (params.a_middle + params.b_middle);
    let outer = at / params.inner / (params.a_middle + params.b_middle);
    let inner = at % params.inner;
    if middle < params.a_middle {
        return a_load(params.a_offset + (outer * params.a_middle + middle) * params.inner + inner);
    }
    let of_b = middle - params.a_middle;
    return b_load(params.b_offset + (outer * params.b_middle + of_b) * params.inner + inner);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
    }
}
