// y[batch, i] = x[batch, ids[batch, i]]: rows gathered from many matrices, each with ids of its own.
// @import formats/load/f32 as x
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;

struct Params {
    size: u32, cols: u32, rows: u32, x_offset: u32, ids_offset: u32, shape: vec4<u32>,
    x_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    var at = coordinates(i, params.shape);
    at.z = u32(ids[params.ids_offset + i / params.cols]);
    if at.z < params.rows {
        y[i] = f32(x_load(params.x_offset + steps(at, params.x_strides)));
    }
}
