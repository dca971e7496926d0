// Sums of a product, stored as they are, and these times the weight of a norm as groups in eight bits,
// with the squares of which the product that follows makes the norm.
// @import formats/load/f32 as scale
// @import lib/q8/q8
// @import lib/q8/group_store

@group(0) @binding(0) var<storage, read_write> total: array<f32>;

fn buf_put(col: u32, first_row: u32, lane: u32) {
    if first_row + lane < params.m {
        total[col * params.m + first_row + lane] = results[lane];
    }
    let row = first_row + lane * 32u;
    if lane >= WG / 32u || row >= params.m {
        return;
    }
    var values: array<vec4<f32>, 8>;
    var squares = 0.0;
    for (var k = 0u; k < 8u; k++) {
        let sums = four_results(lane * 32u + k * 4u);
        squares += dot(sums, sums);
        values[k] = sums * scale_load4(params.scale_offset + row + k * 4u);
    }
    var group = q8_group(&values);
    group[2].w = bitcast<u32>(squares);
    put_group((col * params.m + row) / 32u, group);
}
