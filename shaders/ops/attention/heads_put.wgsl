// Queries, keys and values as rope_put.wgsl has them, with rms_norm of each head before rotation, or after:
// one row_reduce a head. Values may have one without a weight. All three are parts of one tensor.
// @import formats/vec4/f32 as q
// @import formats/vec4/f32 as query_norm
// @import formats/vec4/f32 as key_norm
// @import lib/attention/cache_f32 as keys
// @import lib/attention/cache_f32 as values
// @import lib/rope/turned
// @import lib/reduce/each_row

const AFTER: bool = false;
const VALUE_NORMED: bool = false;
const QUERY_WEIGHTED: bool = true;
const KEY_WEIGHTED: bool = true;

// Strides and offsets are multiples of four; `counts` are heads of queries, with those of keys, and of values.
struct Params {
    rows: u32, counts: vec4<u32>, cols: u32, v_cols: u32, pairs: u32, slot_rows: u32, eps: f32,
    q_offset: u32, q_strides: vec4<u32>, k_offset: u32, k_strides: vec4<u32>, v_offset: u32,
    v_strides: vec4<u32>, query_norm_offset: u32, key_norm_offset: u32, angles_offset: u32,
    slots_offset: u32,
}

@group(0) @binding(0) var<storage, read> slots: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

fn compute_row(row: u32, lane: u32, width: u32) {
    let token = row / params.counts.z;
    let head = row % params.counts.z;
    // A slot outside the cache writes nothing: padding of a batch uses -1.
    let slot = u32(slots[params.slots_offset + token]);
    let kv_heads = params.counts.y - params.counts.x;
    if head < params.counts.x {
        query(token, head, lane, width);
    } else if head < params.counts.y {
        key(token, head - params.counts.x, slot, kv_heads, lane, width);
    } else {
        value(token, head - params.counts.y, slot, kv_heads, lane, width);
    }
}

// What values are multiplied with whose squares row_reduce sums.
fn normed(squares: f32, count: u32, lane: u32) -> f32 {
    return 1.0 / sqrt(row_reduce_sum(squares, lane) / f32(count) + params.eps);
}

// Squares stay as many when pairs turn by angles of magnitude one; a table may have another.
fn query(token: u32, head: u32, lane: u32, width: u32) {
    let start = params.q_offset + token * params.q_strides.y + head * params.q_strides.z;
    var sum = 0.0;
    for (var octet = lane; octet < params.cols / 8u; octet += width) {
        let made = query_octet(start, octet, token, AFTER);
        sum += dot(made[0], made[0]) + dot(made[1], made[1]);
    }
    let factor = normed(sum, params.cols, lane);
    let at = (token * params.counts.x + head) * params.cols;
    for (var octet = lane; octet < params.cols / 8u; octet += width) {
        let places = places_of(octet, params.pairs);
        var made = query_octet(start, octet, token, AFTER);
        made[0] *= factor * query_weight(places.x);
        made[1] *= factor * query_weight(places.y);
        if !AFTER {
            made = turned(octet, params.pairs, angles_of(token), made[0], made[1]);
        }
        y[(at + places.x) / 4u] = made[0];
        y[(at + places.y) / 4u] = made[1];
    }
}

fn query_octet(start: u32, octet: u32, token: u32, turn: bool) -> array<vec4<f32>, 2> {
    let places = places_of(octet, params.pairs);
    let a = q_load4((start + places.x) / 4u);
    let b = q_load4((start + places.y) / 4u);
    if turn {
        return turned(octet, params.pairs, angles_of(token), a, b);
    }
    return array<vec4<f32>, 2>(a, b);
}

fn query_weight(place: u32) -> vec4<f32> {
    if QUERY_WEIGHTED {
        return query_norm_load4((params.query_norm_offset + place) / 4u);
    }
    return vec4<f32>(1.0);
}

fn key(token: u32, head: u32, slot: u32, kv_heads: u32, lane: u32, width: u32) {
    let start = params.k_offset + token * params.k_strides.y + head * params.k_strides.z;
    var sum = 0.0;
    for (var octet = lane; octet < params.cols / 8u; octet += width) {
        let made = key_octet(start, octet, token, AFTER);
        sum += dot(made[0], made[0]) + dot(made[1], made[1]);
    }
    let factor = normed(sum, params.cols, lane);
    if slot >= params.slot_rows {
        return;
    }
    let at = (slot * kv_heads + head) * params.cols;
    for (var octet = lane; octet < params.cols / 8u; octet += width) {
        let places = places_of(octet, params.pairs);
        var made = key_octet(start, octet, token, AFTER);
        made[0] *= factor * key_weight(places.x);
        made[1] *= factor * key_weight(places.y);
        if !AFTER {
            made = turned(octet, params.pairs, angles_of(token), made[0], made[1]);
        }
        keys_put4((at + places.x) / 4u, made[0]);
        keys_put4((at + places.y) / 4u, made[1]);
    }
}

fn key_octet(start: u32, octet: u32, token: u32, turn: bool) -> array<vec4<f32>, 2> {
    let places = places_of(octet, params.pairs);
    let a = q_load4((start + places.x) / 4u);
    let b = q_load4((start + places.y) / 4u);
    if turn {
        return turned(octet, params.pairs, angles_of(token), a, b);
    }
    return array<vec4<f32>, 2>(a, b);
}

fn key_weight(place: u32) -> vec4<f32> {
    if KEY_WEIGHTED {
        return key_norm_load4((params.key_norm_offset + place) / 4u);
    }
    return vec4<f32>(1.0);
}

fn value(token: u32, head: u32, slot: u32, kv_heads: u32, lane: u32, width: u32) {
    let start = (params.v_offset + token * params.v_strides.y + head * params.v_strides.z) / 4u;
    var factor = 1.0;
    if VALUE_NORMED {
        var sum = 0.0;
        for (var i = lane; i < params.v_cols / 4u; i += width) {
            let own = q_load4(start + i);
            sum += dot(own, own);
        }
        factor = normed(sum, params.v_cols, lane);
    }
    if slot >= params.slot_rows {
        return;
    }
    let at = (slot * kv_heads + head) * params.v_cols / 4u;
    for (var i = lane; i < params.v_cols / 4u; i += width) {
        values_put4(at + i, q_load4(start + i) * factor);
    }
}

// Where the table has the angles of a token.
fn angles_of(token: u32) -> u32 {
    return params.angles_offset + token * params.pairs * 2u;
}
