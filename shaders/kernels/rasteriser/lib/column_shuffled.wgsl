// A group of 32 values in eight bits that all lanes of a subgroup of eight need: six lanes load two
// words of it each, and subgroup shuffles hand them to the others. A rasteriser makes a load of
// eight lanes eight loads, also where all read the same word, so this takes a twelfth of them. Of
// its words each lane makes the factors, for all lanes at once.
// @import kernels/rasteriser/lib/sums_of_pairs as sums
// @import lib/q8/column

@group(0) @binding(0) var<storage, read> buf: array<u64>;

fn buf_column(group: u32, lane: u32) -> Column {
    let words = buf[group * 6u + min(lane, 5u)];
    let first = u32(words);
    let second = u32(words >> 32u);
    let own = factors(vec4<u32>(first, second, 0u, 0u));
    return Column(
        Factors(
            vec4<i32>(
                subgroupBroadcast(own.even.x, 0u), subgroupBroadcast(own.even.y, 0u),
                subgroupBroadcast(own.even.x, 1u), subgroupBroadcast(own.even.y, 1u),
            ),
            vec4<i32>(
                subgroupBroadcast(own.odd.x, 0u), subgroupBroadcast(own.odd.y, 0u),
                subgroupBroadcast(own.odd.x, 1u), subgroupBroadcast(own.odd.y, 1u),
            ),
        ),
        Factors(
            vec4<i32>(
                subgroupBroadcast(own.even.x, 2u), subgroupBroadcast(own.even.y, 2u),
                subgroupBroadcast(own.even.x, 3u), subgroupBroadcast(own.even.y, 3u),
            ),
            vec4<i32>(
                subgroupBroadcast(own.odd.x, 2u), subgroupBroadcast(own.odd.y, 2u),
                subgroupBroadcast(own.odd.x, 3u), subgroupBroadcast(own.odd.y, 3u),
            ),
        ),
        bitcast<f32>(subgroupBroadcast(first, 4u)),
        bitcast<f32>(subgroupBroadcast(second, 4u)),
        bitcast<f32>(subgroupBroadcast(first, 5u)),
        bitcast<f32>(subgroupBroadcast(second, 5u)),
    );
}
