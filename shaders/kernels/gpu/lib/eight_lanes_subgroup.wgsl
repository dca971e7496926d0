// As eight_lanes_workgroup.wgsl without barriers, for subgroups of eight lanes or more, which are taken
// to be lanes in a row. Fours that have the same exchange it with those of the lane mirrored in its eight,
// as the compilers of some GPUs do in the addition itself.

struct buf_Totals { all: f32, first: f32, squares: f32 }

fn buf_max(value: u32, lane: u32) -> u32 {
    var largest = value;
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    return max(largest, subgroupShuffleXor(largest, 7u));
}

fn buf_totals(sum: f32, squares: f32, lane: u32) -> buf_Totals {
    var half = sum;
    half += subgroupShuffleXor(half, 1u);
    half += subgroupShuffleXor(half, 2u);
    var all = squares;
    all += subgroupShuffleXor(all, 1u);
    all += subgroupShuffleXor(all, 2u);
    all += subgroupShuffleXor(all, 7u);
    return buf_Totals(half + subgroupShuffleXor(half, 7u), half, all);
}

fn buf_second(values: vec4<f32>, lane: u32) -> vec4<f32> {
    return select(subgroupShuffleXor(values, 4u), values, (lane & 4u) != 0u);
}
