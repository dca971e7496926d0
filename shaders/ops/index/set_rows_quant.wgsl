// y[batch, ids[batch, i]] = x[batch, i]: rows scattered into matrices in blocks, two blocks a
// thread, whose f16 scales share a word; one where a row may end between two such. The matrices
// lie one below the other, `rows` each.
// @import formats/load/f32 as x
// @import formats/quantise/q8_0 as y
// @import lib/index/grid
// @import lib/index/coordinates

const WG: u32 = 64u;
const TAKEN: u32 = 2u;

struct Params {
    size: u32, columns: u32, count: u32, rows: u32, x_offset: u32, ids_offset: u32, y_group: u32,
    rows_shape: vec4<u32>, ids_steps: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

fn load32(block: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    for (var i = 0u; i < 8u; i++) {
        (*values)[i] = x_load4(params.x_offset + block * 32u + i * 4u);
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let k = i / params.columns;
    let at = coordinates(k, params.rows_shape);
    let wanted = u32(ids[params.ids_offset + steps(at, params.ids_steps)]);
    // An id outside the matrix writes nothing: padding of a batch uses -1.
    if wanted >= params.rows {
        return;
    }
    let row = k / params.count * params.rows + wanted;
    let block = params.y_group + (row * params.columns + i % params.columns) * TAKEN;
    var values: array<vec4<f32>, 8>;
    load32(i * TAKEN, &values);
    let scale = y_quantise(block, &values);
    if TAKEN == 1u {
        y_store_scale(block, scale);
        return;
    }
    load32(i * TAKEN + 1u, &values);
    y_store_scales(block / 2u, scale, y_quantise(block + 1u, &values));
}
