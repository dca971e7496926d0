// y = x, from blocks to floats, 32 values a thread.
// @import formats/dequant/f32 as weights
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, weights_group: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    var values: array<vec4<f32>, 8>;
    weights_load32(params.weights_group + i, &values);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        y_store4(i * 32u + k * 4u, values[k]);
    }
}
