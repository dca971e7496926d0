// y[batch, i, i] = x[batch, i], 0 off the diagonal.
// @import formats/bits_load/word as x
// @import formats/bits_store4/word as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, n: u32, x_offset: u32 }

@group(0) @binding(0) var<uniform> params: Params;

fn value(i: u32) -> vec2<u32> {
    let at = min(i, params.size - 1u);
    let row = at / params.n;
    return select(vec2<u32>(0u), x_load(params.x_offset + row), at % params.n == row % params.n);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, value(i), value(i + 1u), value(i + 2u), value(i + 3u));
    }
}
