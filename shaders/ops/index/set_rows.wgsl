// y[ids[i]] = x[i]: rows scattered into a matrix whose type may differ, four values a thread.
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, cols: u32, rows: u32, x_offset: u32, ids_offset: u32, y_offset: u32 }

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i >= params.size {
        return;
    }
    let row = u32(ids[params.ids_offset + i / params.cols]);
    // An id outside the matrix writes nothing: padding of a batch uses -1.
    if row < params.rows {
        y_store4(params.y_offset + row * params.cols + i % params.cols, x_load4(params.x_offset + i));
    }
}
