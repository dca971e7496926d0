// What a lane does with its rows of a column of a product: values, stored as they are.

fn buf_put(col: u32, group: u32, lane: u32, values: array<f32, ROWS>) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = row_mapping_row(group, lane, r);
        if row_r < result_rows() {
            let place = params.first_row + row_r;
            y[col * params.m + place] = added(col, place, values[r]);
        }
    }
}
