// y = x as the sum of two tensors in eight bits, a group of 32 values a thread: the second is what
// rounding to the first leaves. Rows of y alternate between them.
// @import formats/vec4/f32 as x
// @import lib/index/grid
// @import lib/q8/q8
// @import lib/q8/q8_store

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
    let at = row * params.groups + i;
    let first = q8_group(&values);
    q8_store(at, 2u * params.size, first);
    q8_subtract(&values, first);
    q8_store(at + params.groups, 2u * params.size, q8_group(&values));
}
