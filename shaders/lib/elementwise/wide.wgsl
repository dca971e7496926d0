// Two operands of 64 bits, value by value with broadcasting; the kernel's file brings `main`.
// @import formats/bits_load/wide as a
// @import formats/bits_load/wide as b
// @import lib/index/grid
// @import lib/index/strided
// @import lib/numeric/wide_integers

const WG: u32 = 64u;
const ITEMS_PER_THREAD: u32 = 1u;
const A_DENSE: bool = true;
const B_DENSE: bool = true;

struct Params {
    size: u32,
    a_offset: u32,
    b_offset: u32,
    shape: vec4<u32>,
    a_strides: vec4<u32>,
    b_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

// Value `i` of an operand; lanes beyond the end repeat the last one.
fn a_value(i: u32) -> vec2<u32> {
    let k = min(i, params.size - 1u);
    if A_DENSE {
        return a_load(params.a_offset + k);
    }
    return a_load(params.a_offset + strided(k, params.shape, params.a_strides));
}

fn b_value(i: u32) -> vec2<u32> {
    let k = min(i, params.size - 1u);
    if B_DENSE {
        return b_load(params.b_offset + k);
    }
    return b_load(params.b_offset + strided(k, params.shape, params.b_strides));
}
