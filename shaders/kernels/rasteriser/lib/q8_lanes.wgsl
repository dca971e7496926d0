// A group of 32 values in eight bits, made by a work group that is a subgroup of eight lanes: each has
// four values of it. The importing file has `y`, in words.
// @import lib/q8/q8

// Rounds and stores a group; `squares` are of the lane's own values.
fn q8_put(group: u32, values: vec4<f32>, squares: f32, lane: u32) {
    let bits = bitcast<vec4<u32>>(abs(values));
    let by = q8_scale(lanes_max(max(max(bits.x, bits.y), max(bits.z, bits.w))));
    let quants = q8_quants(values, by);
    let own = quants.x + quants.y + quants.z + quants.w;
    // Both sums in one: that of the first half in the upper 16 bits.
    let sums = lanes_sum(own + select(0, own << 16u, lane < 4u));
    let all = (sums << 16u) >> 16u;
    let tail = q8_tail(by, all, (sums - all) >> 16u, lanes_sum_f32(squares));
    y[group * 12u + lane] = pack4xI8(quants);
    if lane < 4u {
        y[group * 12u + 8u + lane] = tail[lane];
    }
}

// A rasteriser permutes lanes in one instruction, but reduces them one by one.
fn lanes_max(value: u32) -> u32 {
    var result = value;
    // @unroll
    for (var i = 0u; i < 3u; i++) {
        result = max(result, subgroupShuffleXor(result, 1u << i));
    }
    return result;
}

fn lanes_sum(value: i32) -> i32 {
    var result = value;
    // @unroll
    for (var i = 0u; i < 3u; i++) {
        result += subgroupShuffleXor(result, 1u << i);
    }
    return result;
}

fn lanes_sum_f32(value: f32) -> f32 {
    var result = value;
    // @unroll
    for (var i = 0u; i < 3u; i++) {
        result += subgroupShuffleXor(result, 1u << i);
    }
    return result;
}
