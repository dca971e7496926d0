// Attention of tokens that share no keys, over a paged cache, for subgroups of eight lanes or
// more. A work group takes ROWS query heads of one token that share a head of the cache, and one range
// of positions (a split). Eight lanes, a cluster, read a key straight into registers, KEYS of them at a
// time. Each lane multiplies its share of all of them, gets the whole score of one, and makes the weights
// of that one; the others read these in workgroup memory. Softmax is online: a running maximum of each
// cluster, and sums rescaled when it moves.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged
// @import kernels/gpu/lib/cluster
// @import kernels/gpu/lib/cluster_softmax
// @import kernels/gpu/lib/cluster_slots
// @import kernels/gpu/lib/sums_f32 as sums
// @import kernels/gpu/prologue/none as prologue

const WG: u32 = 64u;
const ROWS: u32 = 4u;
const KEYS: u32 = 4u;
const K_VEC4S: u32 = 4u;         // vectors of four of a key that a lane has
const V_VEC4S: u32 = 4u;
const K_EVEN: bool = true;       // lanes have as many vectors, none is beyond a key
const V_EVEN: bool = true;
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;
const CLUSTERS: u32 = WG / LANES;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> shares: array<vec4<f32>, WG * V_VEC4S>;
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) width: u32,
    @builtin(subgroup_invocation_id) place: u32,
) {
    let kv_head = group.x;
    let tiles = (params.group + params.step - 1u) / params.step;
    let token = group.y / tiles;
    // Of the query heads of its group.
    let first = group.y % tiles * params.step;
    let last = min(first + params.step, params.group);
    // Neighbours in a subgroup are a cluster.
    let index = subgroup * width + place;
    let lane = index % LANES;
    let cluster = index / LANES;
    prologue_put(kv_head, token, thread, lane);
    var query: array<sums_Vector, ROWS * K_VEC4S>;
    var powers: array<f32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        powers[r] = bring_query(&query, r, token * params.group + min(first + r, last - 1u), kv_head, lane);
    }
    let sequence = sequence_of(token);
    let range = part_of(seen_by(token), group.z);
    var state: Sums;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        state.largest[r] = HALF_LOWEST;
        if SINKS && group.z == 0u && cluster == 0u {
            let sink_r = sink_of(token * params.group + min(first + r, last - 1u), kv_head);
            state.largest[r] = max(sink_r * LOG2_E, HALF_LOWEST);
            state.total[r] = select(0.0, 1.0, lane == 0u);
        }
    }
    var parity = 0u;
    for (var start = range.x / KEYS * KEYS; start < range.y; start += CLUSTERS * KEYS) {
        let slots = slots_of(sequence, start + cluster * KEYS, range, kv_head);
        let at = parity * WEIGHTS + cluster * KEYS * ROWS;
        let rows = vec3<u32>(token * params.group + first, token * params.group + last, kv_head);
        attend(&state, &query, powers, slots, start + cluster * KEYS, range, rows, at, lane);
        parity = 1u - parity;
    }
    join_clusters(&state, lane, cluster);
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_VEC4S; i++) {
            shares[vec4_of(i, V_VEC4S, lane) * CLUSTERS + (cluster ^ (lane % CLUSTERS))] = state.sums[r * V_VEC4S + i];
        }
        workgroupBarrier();
        if first + r < last {
            let at_r = result_of(token, kv_head * params.group + first + r, group.z);
            for (var vec4_index = thread; vec4_index < params.v_vec4s; vec4_index += WG) {
                var sum_r = vec4<f32>(0.0);
                for (var t = 0u; t < CLUSTERS; t++) {
                    sum_r += shares[vec4_index * CLUSTERS + t];
                }
                y[at_r + vec4_index] = sum_r * scale_of(state.total[r]);
            }
            if params.splits > 1u && thread == 0u {
                y[at_r + params.v_vec4s] = vec4<f32>(state.largest[r] * LN_2, state.total[r], 0.0, 0.0);
            }
        }
        workgroupBarrier();
    }
}

// Where the result of a query goes, in vectors.
fn result_of(token: u32, head: u32, split: u32) -> u32 {
    let width = params.v_vec4s + select(0u, 1u, params.splits > 1u);
    return ((token * params.heads + head) * params.splits + split) * width;
}

// The vectors of a head that a lane has: neighbours two by two, so that lanes side by side read memory
// side by side.
fn vec4_of(i: u32, each: u32, lane: u32) -> u32 {
    if each % 2u == 1u && i == each - 1u {
        return i * LANES + lane;
    }
    return i / 2u * 2u * LANES + 2u * lane + i % 2u;
}

// Bring a lane's share of a query, times the scale of scores; return what it was divided by.
fn bring_query(
    query: ptr<function, array<sums_Vector, ROWS * K_VEC4S>>, r: u32, row: u32, kv_head: u32, lane: u32,
) -> f32 {
    let start = query_of(row, kv_head);
    let factor = norm_of(start, lane);
    let scale = query_factor(row) * select(LOG2_E, 1.0, CAPPED);
    var values: array<vec4<f32>, K_VEC4S>;
    var largest = 0.0;
    // @unroll
    for (var i = 0u; i < K_VEC4S; i++) {
        let vec4_i = vec4_of(i, K_VEC4S, lane);
        if K_EVEN || vec4_i < params.k_vec4s {
            values[i] = prologue_query4(start, row / params.group, vec4_i, factor) * scale;
        }
        let size_i = abs(values[i]);
        largest = max(largest, max(max(size_i.x, size_i.y), max(size_i.z, size_i.w)));
    }
    let power = sums_power(largest_across_lanes(largest));
    // @unroll
    for (var i = 0u; i < K_VEC4S; i++) {
        (*query)[r * K_VEC4S + i] = sums_Vector(values[i] / power);
    }
    return power;
}

// The factor of the norm of a query; 1 without a norm.
fn norm_of(start: u32, lane: u32) -> f32 {
    if !prologue_NORMED {
        return 1.0;
    }
    var squares = 0.0;
    for (var vec4_index = lane; vec4_index < params.k_vec4s; vec4_index += LANES) {
        let values = q_load4(start + 4u * vec4_index);
        squares += dot(values, values);
    }
    return prologue_factor(across_lanes(squares));
}

// KEYS positions from `start` on, of which those in `range` count; their weights go to `at`. `rows` are the
// first, one past the last, and their head of the cache.
fn attend(
    state: ptr<function, Sums>, query: ptr<function, array<sums_Vector, ROWS * K_VEC4S>>, powers: array<f32, ROWS>,
    slots: array<u32, KEYS>, start: u32, range: vec2<u32>, rows: vec3<u32>, at: u32, lane: u32,
) {
    var parts: array<f32, ROWS * KEYS>;
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        var key: array<sums_Vector, K_VEC4S>;
        // @unroll
        for (var i = 0u; i < K_VEC4S; i++) {
            let vec4_i = vec4_of(i, K_VEC4S, lane);
            let apart_i = slots[p] * params.k_vec4s + min(vec4_i, params.k_vec4s - 1u);
            key[i] = sums_Vector(k_load4(select(apart_i, slots[p] * (K_VEC4S * LANES) + vec4_i, K_EVEN)));
        }
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            parts[r * KEYS + p] = sums_part(&key, query, r);
        }
    }
    var values: array<sums_Vector, KEYS * V_VEC4S>;
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var i = 0u; i < V_VEC4S; i++) {
            let vec4_i = vec4_of(i, V_VEC4S, lane);
            let apart_i = value_at(slots[p]) + min(vec4_i, params.v_vec4s - 1u);
            values[p * V_VEC4S + i] = sums_Vector(v_load4(select(apart_i, slots[p] * (V_VEC4S * LANES) + vec4_i, V_EVEN)));
        }
    }
    let own = start + lane % KEYS;
    weigh(state, &parts, powers, rows, own, own >= range.x && own < range.y, at, lane);
    workgroupBarrier();
    add_values(state, &values, at);
}

fn add_values(state: ptr<function, Sums>, values: ptr<function, array<sums_Vector, KEYS * V_VEC4S>>, at: u32) {
    var made: array<sums_Vector, ROWS * V_VEC4S>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_VEC4S; i++) {
            made[r * V_VEC4S + i] = sums_begin((*state).sums[r * V_VEC4S + i]);
        }
    }
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let weight_r = sums_Vector(weights[at + p * ROWS + r]);
            // @unroll
            for (var i = 0u; i < V_VEC4S; i++) {
                made[r * V_VEC4S + i] = fma((*values)[p * V_VEC4S + i], weight_r, made[r * V_VEC4S + i]);
            }
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_VEC4S; i++) {
            let sum_i = (*state).sums[r * V_VEC4S + i];
            (*state).sums[r * V_VEC4S + i] = sums_end(sum_i, made[r * V_VEC4S + i]);
        }
    }
}
