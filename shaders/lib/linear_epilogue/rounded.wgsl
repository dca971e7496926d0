// Rows of a product in eight bits, a group of 32 a lane. There are whole groups of rows.
// @import lib/q8/q8
// @import lib/q8/group_store

fn buf_put(col: u32, first_row: u32, lane: u32) {
    let row = first_row + lane * 32u;
    if lane >= WG / 32u || row >= params.m {
        return;
    }
    var values: array<vec4<f32>, 8>;
    for (var k = 0u; k < 8u; k++) {
        values[k] = four_results(lane * 32u + k * 4u);
    }
    put_group((col * params.m + row) / 32u, q8_group(&values));
}
