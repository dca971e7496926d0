// What a work group does with the results of a product of few columns: values, with what is added to
// them. The importing file has `y`, in words, and `result_of`.
// @import lib/linear/added

fn buf_put(first_row: u32, first_col: u32, lane: u32) {
    // There are as many lanes as results.
    let row = first_row + lane / COLS;
    let col = first_col + lane % COLS;
    if lane < BLOCKS * ROWS * COLS && row < result_rows() && col < all_columns() && col % PARTS == 0u {
        let place = params.first_row + row;
        let value = result_of(lane / COLS, lane % COLS);
        y[col / PARTS * params.m + place] = bitcast<u32>(added(col / PARTS, place, value));
    }
}
