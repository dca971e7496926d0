// As `lib/reduce/row_workgroup.wgsl`, without barriers: for devices that run a work group as one subgroup. Where it
// is several, each does the work of all.

fn buf_lane(lane: u32) -> u32 {
    return subgroupExclusiveAdd(1u);
}

fn buf_width() -> u32 {
    return subgroupAdd(1u);
}

fn buf_sum(value: f32, lane: u32) -> f32 {
    return subgroupAdd(value);
}

fn buf_max(value: f32, lane: u32) -> f32 {
    return subgroupMax(value);
}
