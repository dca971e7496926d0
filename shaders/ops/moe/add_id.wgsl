// y[t, u] = x[t, u] + bias[ids[t, u]]: the bias of the expert that made each row.
// @import formats/load/f32 as x
// @import formats/load/f32 as bias
// @import lib/experts/expert_of
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, cols: u32, used: u32, bias_rows: u32, x_offset: u32, bias_offset: u32,
    ids_offset: u32, ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let expert = expert_of(i / params.cols);
    var value = x_load(params.x_offset + i);
    if expert < params.bias_rows {
        value += bias_load(params.bias_offset + expert * params.cols + i % params.cols);
    }
    y[i] = value;
}
