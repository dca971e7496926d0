// y = x · weight in eight bits, a group of 32 values a thread. The squares behind a group are of x
// alone: they are of a norm, which the product of y makes up for.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/index/grid
// @import lib/q8/q8
// @import lib/q8/q8_store

const WG: u32 = 64u;

struct Params { size: u32, groups: u32, x_offset: u32, weight_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let first_weight = params.weight_offset / 4u + i % params.groups * 8u;
    var values: array<vec4<f32>, 8>;
    var squares = vec4<f32>(0.0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let x_k = x_load4(params.x_offset / 4u + i * 8u + k);
        squares += x_k * x_k;
        values[k] = x_k * weight_load4(first_weight + k);
    }
    var packed = q8_group(&values);
    packed[2].w = bitcast<u32>(dot(squares, vec4<f32>(1.0)));
    q8_store(i, params.size, packed);
}
