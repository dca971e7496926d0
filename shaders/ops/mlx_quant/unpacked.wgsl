// y = values of codes: eight a thread.
// @import lib/packed/affine as weights
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    count: u32, row_values: u32, words: u32, groups: u32, packed_offset: u32, scales_offset: u32,
    biases_offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let first = i * 8u;
    let values = weights8(first / params.row_values, first % params.row_values);
    y_store4(first, values.low);
    y_store4(first + 4u, values.high);
}
