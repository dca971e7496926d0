// A team a row. The op's own file brings `compute_row`, which all threads of the row's team call,
// and declares `rows` in its `Params`.
// @import lib/group_row
// @import team/group as team

fn group_row(row: u32, lane: u32) {
    compute_row(row, team_lane(lane), team_width());
}
