// y[batch, i] = weights[batch, ids[batch, i]]: rows gathered from matrices in blocks or textures, 32
// values a thread. The matrices lie one below the other, `rows` each, and `count` ids look into each.
// @import lib/blocks/groups_of_32 as source
// @import formats/load/i32 as ids
// @import lib/index/grid
// @import lib/numeric/raised

const WG: u32 = 64u;

struct Params {
    size: u32, groups: u32, count: u32, rows: u32, first_row: u32, weights_rows: u32,
    weights_group: u32, ids_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let k = i / params.groups;
    let wanted = u32(ids_load(params.ids_offset + k));
    // Rows of another part of a split weight wrap around to large numbers here, and are skipped.
    let row = k / params.count * params.rows + wanted - params.first_row;
    if wanted < params.rows && row < params.weights_rows {
        let start = weight_start(row, params.groups, source_PARTS);
        let first = i % params.groups * source_PARTS;
        // @unroll
        for (var p = 0u; p < source_PARTS; p++) {
            var values: array<vec4<f32>, source_VEC4S>;
            source_part(start + (first + p) * PART_STEP, &values);
            // @unroll
            for (var q = 0u; q < source_VEC4S; q++) {
                y[(i * source_PARTS + p) * source_VEC4S + q] = raised4(raised4(values[q]));
            }
        }
    }
}
