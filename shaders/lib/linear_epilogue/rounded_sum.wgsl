// Sums of a product, stored as they are, and these times the weight of a norm, rounded by groups, with
// the squares of which the product that follows makes the norm.
// @import formats/load/f32 as scale
// @import lib/linear/rounding_in_bytes as rounding

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
    rounding_put((col * params.m + row) / 32u, &values, squares);
}
