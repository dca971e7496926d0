// Queries of latent attention as rope_join.wgsl joins them, y[t, h] = first[t, h] beside second[t, h] rotated,
// and the key of a token likewise, whose latent part may come from a norm, into its row of a cache: one
// row_reduce a head, and one a key.
// @import formats/vec4/f32 as first
// @import formats/vec4/f32 as second
// @import formats/vec4/f32 as latents
// @import formats/vec4/f32 as weight
// @import lib/attention/cache_f32 as keys
// @import lib/rope/turned
// @import lib/reduce/each_row

const NORMED: bool = false;
const WEIGHTED: bool = false;

// Strides and offsets are multiples of four; `heads` are those of queries.
struct Params {
    rows: u32, heads: u32, plain: u32, cols: u32, pairs: u32, eps: f32, slot_rows: u32,
    first_offset: u32, second_offset: u32, latents_offset: u32, shared_offset: u32, weight_offset: u32,
    angles_offset: u32, slots_offset: u32, latents_stride: u32, shared_stride: u32,
    first_strides: vec4<u32>, second_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> slots: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let token = row / (params.heads + 1u);
    let head = row % (params.heads + 1u);
    if head < params.heads {
        query(token, head, lane, width);
    } else {
        key(token, lane, width);
    }
}

fn query(token: u32, head: u32, lane: u32, width: u32) {
    let first = (params.first_offset + token * params.first_strides.y + head * params.first_strides.z) / 4u;
    let second = params.second_offset + token * params.second_strides.y + head * params.second_strides.z;
    let at = (token * params.heads + head) * params.cols;
    for (var i = lane; i < params.plain / 4u; i += width) {
        y[at / 4u + i] = first_load4(first + i);
    }
    for (var octet = lane; octet < (params.cols - params.plain) / 8u; octet += width) {
        let places = places_of(octet, params.pairs);
        let a = second_load4((second + places.x) / 4u);
        let made = turned(octet, params.pairs, angles_of(token), a, second_load4((second + places.y) / 4u));
        y[(at + params.plain + places.x) / 4u] = made[0];
        y[(at + params.plain + places.y) / 4u] = made[1];
    }
}

fn key(token: u32, lane: u32, width: u32) {
    let latent = (params.latents_offset + token * params.latents_stride) / 4u;
    var factor = 1.0;
    if NORMED {
        var sum = 0.0;
        for (var i = lane; i < params.plain / 4u; i += width) {
            let values = latents_load4(latent + i);
            sum += dot(values, values);
        }
        factor = 1.0 / sqrt(row_reduce_sum(sum, lane) / f32(params.plain) + params.eps);
    }
    // A slot outside the cache writes nothing.
    let slot = u32(slots[params.slots_offset + token]);
    if slot >= params.slot_rows {
        return;
    }
    let at = slot * params.cols;
    for (var i = lane; i < params.plain / 4u; i += width) {
        var values = latents_load4(latent + i) * factor;
        if WEIGHTED {
            values *= weight_load4(params.weight_offset / 4u + i);
        }
        keys_put4(at / 4u + i, values);
    }
    let shared_part = params.shared_offset + token * params.shared_stride;
    for (var octet = lane; octet < (params.cols - params.plain) / 8u; octet += width) {
        let places = places_of(octet, params.pairs);
        let a = latents_load4((shared_part + places.x) / 4u);
        let b = latents_load4((shared_part + places.y) / 4u);
        let made = turned(octet, params.pairs, angles_of(token), a, b);
        keys_put4((at + params.plain + places.x) / 4u, made[0]);
        keys_put4((at + params.plain + places.y) / 4u, made[1]);
    }
}

fn angles_of(token: u32) -> u32 {
    return params.angles_offset + token * params.pairs * 2u;
}
