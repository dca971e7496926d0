// What eight lanes in a row of a subgroup, a cluster, exchange. Where the order is free, a lane takes its
// mirror image in the cluster as a partner instead of the one four lanes further, which older GPUs have no
// single instruction for.

const LANES: u32 = 8u;

fn across_lanes(part: f32) -> f32 {
    var sum = part;
    sum += subgroupShuffleXor(sum, 7u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 1u);
}

fn largest_across_lanes(own: f32) -> f32 {
    var largest = own;
    largest = max(largest, subgroupShuffleXor(largest, 7u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    return max(largest, subgroupShuffleXor(largest, 1u));
}
