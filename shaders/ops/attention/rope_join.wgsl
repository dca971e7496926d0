// y[t, h] = first[t, h] beside second[t, h] rotated by the angles of a table as in rope.wgsl, and the first
// part behind a norm with NORMED: one row_reduce a head. With slots a token's heads go into a row of a cache.
// @import formats/vec4/f32 as first
// @import formats/vec4/f32 as second
// @import formats/vec4/f32 as weight
// @import lib/attention/cache_f32 as y
// @import lib/rope/no_slots as slots
// @import lib/rope/turned
// @import lib/reduce/each_row

const NORMED: bool = false;
const WEIGHTED: bool = false;

// Strides and offsets are multiples of four. Without slots there are no rows of a cache.
struct Params {
    rows: u32, heads: u32, plain: u32, cols: u32, pairs: u32, eps: f32, dst_rows: u32,
    first_offset: u32, second_offset: u32, weight_offset: u32, angles_offset: u32, slots_offset: u32,
    first_strides: vec4<u32>, second_strides: vec4<u32>,
}

fn compute_row(row: u32, lane: u32, width: u32) {
    let token = row / params.heads;
    let head = row % params.heads;
    let first = (params.first_offset + token * params.first_strides.y + head * params.first_strides.z) / 4u;
    let second = params.second_offset + token * params.second_strides.y + head * params.second_strides.z;
    var factor = 1.0;
    if NORMED {
        var sum = 0.0;
        for (var i = lane; i < params.plain / 4u; i += width) {
            let values = first_load4(first + i);
            sum += dot(values, values);
        }
        factor = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.plain) + params.eps);
    }
    // A slot outside the cache writes nothing.
    let slot = select(token, u32(slots_load(params.slots_offset + token)), params.dst_rows > 0u);
    if params.dst_rows > 0u && slot >= params.dst_rows {
        return;
    }
    let at = (slot * params.heads + head) * params.cols;
    for (var i = lane; i < params.plain / 4u; i += width) {
        var values = first_load4(first + i);
        if NORMED {
            values *= factor;
        }
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        y_put4(at / 4u + i, values);
    }
    let angles = params.angles_offset + token * params.pairs * 2u;
    for (var octet = lane; octet < (params.cols - params.plain) / 8u; octet += width) {
        let places = places_of(octet, params.pairs);
        let made = turned(octet, params.pairs, angles, second_load4((second + places.x) / 4u), second_load4((second + places.y) / 4u));
        y_put4((at + params.plain + places.x) / 4u, made[0]);
        y_put4((at + params.plain + places.y) / 4u, made[1]);
    }
}
