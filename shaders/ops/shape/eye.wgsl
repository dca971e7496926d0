// y = one value on a diagonal, given as its bits, and zeros.
// @import formats/bits_store4/word as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, cols: u32, k: i32, low: u32, high: u32 }

@group(0) @binding(0) var<uniform> params: Params;

fn value(i: u32) -> vec2<u32> {
    let on = i32(i % params.cols) - i32(i / params.cols) == params.k;
    return select(vec2<u32>(0u), vec2<u32>(params.low, params.high), on);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
    }
}
