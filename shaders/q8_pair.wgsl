// y = x as the sum of two tensors in eight bits, a group of 32 values a thread: the second is what
// rounding to the first leaves. Rows of y alternate between them.
// @import vec4/f32 as x
// @import lib/grid
// @import lib/q8

const WG: u32 = 64u;

struct Params { size: u32, groups: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    var values: array<vec4<f32>, 8>;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        values[k] = x_load4(params.x_offset / 4u + i * 8u + k);
    }
    let row = i / params.groups;
    let at = (row * params.groups + i) * 3u;
    let first = q8_group(&values);
    put(at, first);
    q8_subtract(&values, first);
    put(at + params.groups * 3u, q8_group(&values));
}

fn put(at: u32, group: array<vec4<u32>, 3>) {
    y[at] = group[0];
    y[at + 1u] = group[1];
    y[at + 2u] = group[2];
}
