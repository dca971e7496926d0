// y[batch, i] = weights[batch, ids[batch, i]]: rows gathered from plain matrices. Several lie one below
// the other, `rows` each, and `count` ids look into each.
// @import formats/load/f32 as weights
// @import formats/load/i32 as ids
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, cols: u32, count: u32, rows: u32, first_row: u32, weights_rows: u32, weights_offset: u32,
    ids_offset: u32, row_stride: u32, col_stride: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let k = i / params.cols;
    let wanted = u32(ids_load(params.ids_offset + k));
    // Rows of another part of a split weight wrap around to large numbers here, and are skipped.
    let row = k / params.count * params.rows + wanted - params.first_row;
    if wanted < params.rows && row < params.weights_rows {
        let at = row * params.row_stride + (i % params.cols) * params.col_stride;
        y[i] = f32(weights_load(params.weights_offset + at));
    }
}
