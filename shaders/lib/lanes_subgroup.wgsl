// How lanes of a small work group see each other's values: from register to register. Where a
// subgroup is smaller than the work group, each of them does the work of all lanes by itself.

fn lanes_width() -> u32 {
    return subgroupAdd(1u);
}

fn lane_of(lane: u32) -> u32 {
    return subgroupExclusiveAdd(1u);
}

fn put(number: u32, lane: u32, value: f32) {}

fn put4(number: u32, lane: u32, value: vec4<f32>) {}

fn boards_ready() {}

fn had(number: u32, other: u32, own: f32) -> f32 {
    return subgroupShuffle(own, other);
}

fn had4(number: u32, other: u32, own: vec4<f32>) -> vec4<f32> {
    return subgroupShuffle(own, other);
}

fn had_u(number: u32, other: u32, own: u32) -> u32 {
    return subgroupShuffle(own, other);
}
