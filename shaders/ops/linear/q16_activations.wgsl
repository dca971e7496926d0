// y = x, or x · weight, in sixteen bits, a group of 32 values a thread. The squares behind a group are of
// x alone: with a weight they are of a norm, which the product of y makes up for.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weight
// @import lib/index/grid
// @import lib/q8/q16

const WG: u32 = 64u;
const WEIGHTED: bool = false;

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
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        values[k] = x_load4(params.x_offset / 4u + i * 8u + k);
    }
    let squares = q16_squares(&values);
    if WEIGHTED {
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            values[k] *= weight_load4(first_weight + k);
        }
    }
    let vectors = q16_group(&values, squares);
    // @unroll
    for (var v = 0u; v < 5u; v++) {
        y[v * params.size + i] = vectors[v];
    }
}
