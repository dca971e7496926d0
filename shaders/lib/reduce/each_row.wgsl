// One row_reduce a row. The op's own file brings `compute_row`, which all threads of the row call,
// and declares `rows` in its `Params`.
// @import lib/index/group_row
// @import lib/reduce/row_workgroup as row_reduce

fn group_row(row: u32, lane: u32) {
    compute_row(row, row_reduce_lane(lane), row_reduce_width());
}
