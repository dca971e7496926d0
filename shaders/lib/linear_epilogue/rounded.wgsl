// Rows of a product, rounded by a lane for each group of 32. There are whole groups of rows.
// @import lib/linear/rounding_in_bytes as rounding

fn buf_put(col: u32, first_row: u32, lane: u32) {
    let row = first_row + lane * 32u;
    if lane >= WG / 32u || row >= params.m {
        return;
    }
    var values: array<vec4<f32>, 8>;
    var squares = 0.0;
    for (var k = 0u; k < 8u; k++) {
        let sums = four_results(lane * 32u + k * 4u);
        squares += dot(sums, sums);
        values[k] = sums;
    }
    rounding_put((col * params.m + row) / 32u, &values, squares);
}
