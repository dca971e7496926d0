// The eight vec4s of 32 values of x, of which each lane of a subgroup of eight loads one and gets
// the others by subgroup shuffles: a rasteriser makes a load of eight lanes eight loads.

fn buf_at(at: u32, lane: u32) -> array<vec4<f32>, 8> {
    let own = x_load4(at + lane);
    return array<vec4<f32>, 8>(
        subgroupBroadcast(own, 0u), subgroupBroadcast(own, 1u),
        subgroupBroadcast(own, 2u), subgroupBroadcast(own, 3u),
        subgroupBroadcast(own, 4u), subgroupBroadcast(own, 5u),
        subgroupBroadcast(own, 6u), subgroupBroadcast(own, 7u),
    );
}
