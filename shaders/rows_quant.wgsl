// y[i] = weights[ids[i]]: rows gathered from a matrix in blocks, 32 values a thread.
// @import quant/f32 as weights
// @import lib/grid

const WG: u32 = 64u;

struct Params { size: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, ids_offset: u32, ids_stride: u32 }

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let wanted = u32(ids[params.ids_offset + (i / params.groups) * params.ids_stride]);
    // Ids of another part of a split matrix wrap around to large numbers here, and are skipped.
    let row = wanted - params.first_row;
    if row < params.weights_rows {
        var values: array<vec4<f32>, 8>;
        weights_load32(params.weights_group + row * params.groups + i % params.groups, &values);
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            y[i * 8u + k] = values[k];
        }
    }
}
