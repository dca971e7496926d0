// What a lane does with its rows of a column of a product: values, stored as they are.
// @import lib/added

fn buf_put(col: u32, row: u32, values: array<f32, ROWS>, lane: u32) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if row + r < result_rows() {
            let row_r = params.first_row + row + r;
            y[col * params.m + row_r] = bitcast<u32>(added(col, row_r, values[r]));
        }
    }
}
