// y[batch, ids[batch, i]] = x[batch, i]: rows scattered into many matrices, four values a thread.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;

struct Params {
    size: u32, rows: u32, x_offset: u32, ids_offset: u32, y_offset: u32, x_shape: vec4<u32>,
    ids_steps: vec4<u32>, y_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.size {
        return;
    }
    var at = coordinates(i, params.x_shape);
    at.z = u32(ids[params.ids_offset + steps(at, params.ids_steps)]);
    // An id outside the matrix writes nothing: padding of a batch uses -1.
    if at.z < params.rows {
        y_store4(params.y_offset + steps(at, params.y_strides), x_load4(params.x_offset + i));
    }
}
