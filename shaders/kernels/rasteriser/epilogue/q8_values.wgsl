// What a lane does with its rows of a column of a product: values, stored as they are.
// @import lib/linear/added

fn buf_put(col: u32, row: u32, values: array<f32, ROWS>, lane: u32) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = row + r * INTERLEAVE;
        if row_r < result_rows() {
            let place = params.first_row + row_r;
            y[col * params.m + place] = bitcast<u32>(added(col, place, values[r]));
        }
    }
}
