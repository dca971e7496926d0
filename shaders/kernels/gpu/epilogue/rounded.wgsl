// What a work group does with the results of a product of few columns: its 32 rows of a column are a
// group, which eight lanes round for the product that follows. There are whole groups of rows, and no
// more columns than eights of lanes.
// @import lib/linear/four_added
// @import kernels/gpu/epilogue/sums as made
// @import kernels/gpu/lib/round_q8 as rounding
// @import kernels/gpu/lib/eight_lanes_workgroup as eight

fn buf_put(first_row: u32, first_col: u32, lane: u32) {
    // Lanes beyond the last column repeat it, since all exchange values, and store nothing.
    let c = min(lane / 8u, COLS - 1u);
    let col = min(first_col + c, all_columns() - 1u);
    let part = lane % 8u;
    let row = first_row / 4u + part;  // in fours, as all that follows
    let values = four_added(col, row, four_results_of(4u * part, c));
    let there = lane < 8u * COLS && first_col + c < all_columns();
    let groups = params.m / 32u;
    let place = Place(col * groups + first_row / 32u, all_columns() * groups, part, there);
    rounding_put(place, made_weighted(row, values), values, lane);
    if there {
        made_keep(col * (params.m / 4u) + row, values);
    }
}
