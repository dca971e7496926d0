// y[b, t, h] = softmax(q[b, t, h] · k[b, :, h'] + mask[b, h, t]) · v[b, :, h']: attention over
// plain keys and values. A work group takes one head and QUERIES tokens: WG keys at a time, each
// lane scores one of them, then each lane sums its share of the values. Softmax is online: a
// running maximum, and sums rescaled when it moves. With several splits a work group takes a range
// of the keys and leaves its sums, maximum and total to attention_merge.wgsl.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/f32 as mask
// @import formats/load/f32 as sinks
// @import lib/attention/plain_keys

const WG: u32 = 64u;
const QUERIES: u32 = 4u;
const LANE_VEC4S: u32 = 1u;      // vec4 of each result that one lane owns
const K_VEC4S: u32 = 16u;        // place for the vec4 of a query
const TAIL: bool = false;        // the last vec4 of a key is not full
const K_SHIFT: u32 = 2u;         // 2 where snippets count vectors, 0 where they count values
const V_SHIFT: u32 = 2u;
const LOWEST: f32 = -3.4028234e38;

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> query: array<vec4<f32>, QUERIES * K_VEC4S>;
var<workgroup> weights: array<f32, QUERIES * WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let kv_head = head / params.group;
    let batch = group.z / params.splits;
    let split = group.z % params.splits;
    let first = (params.first_group_y + group.y) * QUERIES;
    if first >= params.tokens {
        return;
    }
    load_queries(batch, head, first, lane);
    workgroupBarrier();
    let k_at = params.k_offset + batch * params.k_strides.x + kv_head * params.k_strides.z;
    let v_at = params.v_offset + batch * params.v_strides.x + kv_head * params.v_strides.z;
    var largest: array<f32, QUERIES>;
    var total: array<f32, QUERIES>;
    var sums: array<array<vec4<f32>, LANE_VEC4S>, QUERIES>;
    // @unroll
    for (var t = 0u; t < QUERIES; t++) {
        largest[t] = LOWEST;
        if SINKS && split == 0u {
            largest[t] = max(f32(sinks_load(params.sinks_offset + head)), LOWEST);
            total[t] = 1.0;
        }
    }
    let range = range_of(first, first + QUERIES - 1u, split, WG);
    for (var start = range.x; start < range.y; start += WG) {
        let count = min(WG, range.y - start);
        let key = start + min(lane, count - 1u);
        var scores = products(k_at + key * params.k_strides.y);
        var seen = array<bool, QUERIES>();
        // @unroll
        for (var t = 0u; t < QUERIES; t++) {
            let token_t = min(first + t, params.tokens - 1u);
            seen[t] = lane < count && key >= seen_from(token_t) && key < seen_until(token_t);
            scores[t] = capped(scores[t]);
            if MASKED {
                let at_t = mask_of(batch, head, token_t) + key * params.mask_strides.w;
                let mask_t = f32(mask_load(at_t));
                seen[t] = seen[t] && shows(mask_t);
                scores[t] = masked(scores[t], mask_t);
            }
            weights[t * WG + lane] = select(LOWEST, scores[t], seen[t]);
        }
        workgroupBarrier();
        var highest = array<f32, QUERIES>();
        // @unroll
        for (var t = 0u; t < QUERIES; t++) {
            var most = largest[t];
            for (var i = 0u; i < count; i++) {
                most = max(most, weights[t * WG + i]);
            }
            highest[t] = most;
        }
        workgroupBarrier();
        // @unroll
        for (var t = 0u; t < QUERIES; t++) {
            weights[t * WG + lane] = select(0.0, exp(scores[t] - highest[t]), seen[t]);
            let shrink_t = exp(largest[t] - highest[t]);
            total[t] *= shrink_t;
            for (var i = 0u; i < LANE_VEC4S; i++) {
                sums[t][i] *= shrink_t;
            }
            largest[t] = highest[t];
        }
        workgroupBarrier();
        for (var i = 0u; i < count; i++) {
            let row = v_at + (start + i) * params.v_strides.y;
            // @unroll
            for (var t = 0u; t < QUERIES; t++) {
                total[t] += weights[t * WG + i];
            }
            for (var n = 0u; n < LANE_VEC4S; n++) {
                let column = (n * WG + lane) * 4u;
                if column < params.v_cols {
                    let value = v_load4((row + column) >> V_SHIFT);
                    // @unroll
                    for (var t = 0u; t < QUERIES; t++) {
                        sums[t][n] += weights[t * WG + i] * value;
                    }
                }
            }
        }
        workgroupBarrier();
    }
    // @unroll
    for (var t = 0u; t < QUERIES; t++) {
        if first + t < params.tokens {
            let out_t = place_of(batch, first + t, head, split);
            let factor_t = factor_of(total[t]);
            if params.splits > 1u {
                store_tail(out_t + params.v_cols, vec4<f32>(largest[t], total[t], 0.0, 0.0), lane);
            }
            for (var n = 0u; n < LANE_VEC4S; n++) {
                let column = (n * WG + lane) * 4u;
                for (var c = 0u; c < 4u; c++) {
                    if column + c < params.v_cols {
                        y[out_t + column + c] = sums[t][n][c] * factor_t;
                    }
                }
            }
        }
    }
}

fn store_tail(at: u32, tail: vec4<f32>, lane: u32) {
    for (var c = lane; c < 4u; c += WG) {
        y[at + c] = tail[c];
    }
}

// Surplus queries repeat the last one, and are not stored.
fn load_queries(batch: u32, head: u32, first: u32, lane: u32) {
    for (var i = lane; i < QUERIES * params.k_vec4s; i += WG) {
        let t = i / params.k_vec4s;
        let token = min(first + t, params.tokens - 1u);
        let column = (i % params.k_vec4s) * 4u;
        let at = params.q_offset + batch * params.q_strides.x + token * params.q_strides.y
            + head * params.q_strides.z;
        query[t * K_VEC4S + column / 4u] = within(q_load4(at + column), column) * params.scale;
    }
}

fn products(at: u32) -> array<f32, QUERIES> {
    var sums: array<vec4<f32>, QUERIES>;
    for (var i = 0u; i < params.k_vec4s; i++) {
        let key = within(k_load4((at + 4u * i) >> K_SHIFT), 4u * i);
        // @unroll
        for (var t = 0u; t < QUERIES; t++) {
            sums[t] += query[t * K_VEC4S + i] * key;
        }
    }
    var products: array<f32, QUERIES>;
    // @unroll
    for (var t = 0u; t < QUERIES; t++) {
        products[t] = sums[t].x + sums[t].y + sums[t].z + sums[t].w;
    }
    return products;
}

// What lies behind a key is another's: nothing, not even a NaN of it, may count.
fn within(value: vec4<f32>, column: u32) -> vec4<f32> {
    if !TAIL {
        return value;
    }
    let columns = vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(0.0), value, columns < vec4<u32>(params.k_cols));
}
