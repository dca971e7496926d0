// Threads that share a row: those of the work group, through workgroup memory. All of a row call
// these together, and every one gets the result. The importing file declares `WG`.
// @import lib/reduce/reduce

fn buf_lane(lane: u32) -> u32 {
    return lane;
}

fn buf_width() -> u32 {
    return WG;
}

fn buf_sum(value: f32, lane: u32) -> f32 {
    return group_sum(value, lane);
}

fn buf_max(value: f32, lane: u32) -> f32 {
    return group_max(value, lane);
}
