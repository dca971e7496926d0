// A group of 32 values in eight bits that all lanes of a subgroup of eight ask for: six lanes load
// two words of it each and tell the others. A rasteriser makes a load of eight lanes eight loads,
// also where all ask for the same word, so this takes a twelfth of them.
// @import lib/group

@group(0) @binding(0) var<storage, read> buf: array<u64>;

fn buf_column(group: u32, lane: u32) -> Column {
    let words = buf[group * 6u + min(lane, 5u)];
    let even = u32(words);
    let odd = u32(words >> 32u);
    return Column(
        vec4<u32>(
            subgroupBroadcast(even, 0u), subgroupBroadcast(odd, 0u),
            subgroupBroadcast(even, 1u), subgroupBroadcast(odd, 1u),
        ),
        vec4<u32>(
            subgroupBroadcast(even, 2u), subgroupBroadcast(odd, 2u),
            subgroupBroadcast(even, 3u), subgroupBroadcast(odd, 3u),
        ),
        bitcast<f32>(subgroupBroadcast(even, 4u)),
        bitcast<f32>(subgroupBroadcast(odd, 4u)),
        bitcast<f32>(subgroupBroadcast(even, 5u)),
        bitcast<f32>(subgroupBroadcast(odd, 5u)),
    );
}
