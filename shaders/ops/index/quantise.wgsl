// y = x in blocks: a thread makes two of 32 values each, whose f16 scales share a word.
// @import formats/load/f32 as x
// @import formats/quantise/q8_0 as y
// @import lib/index/grid
// @import lib/index/strided

const WG: u32 = 64u;

struct Params { blocks: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }

@group(0) @binding(0) var<uniform> params: Params;

fn load32(block: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    for (var i = 0u; i < 8u; i++) {
        let at = strided4(block * 32u + i * 4u, params.shape, params.x_strides);
        (*values)[i] = x_gather4(vec4<u32>(params.x_offset) + at);
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let pair = grid_index(id, groups, WG);
    let first = pair * 2u;
    if first >= params.blocks {
        return;
    }
    var values: array<vec4<f32>, 8>;
    load32(first, &values);
    let scale = y_quantise(first, &values);
    var next_scale = 0u;
    if first + 1u < params.blocks {
        load32(first + 1u, &values);
        next_scale = y_quantise(first + 1u, &values);
    }
    y_store_scales(pair, scale, next_scale);
}
