// Attention of tokens that share no keys, over a paged cache, for subgroups of eight lanes or
// more. A work group takes ROWS query heads of one token that share a head of the cache, and one range
// of positions (a split). Eight lanes, a cluster, read a key straight into registers, KEYS of them at a
// time, and add up what each makes of its share; nothing is brought through workgroup memory, and clusters
// wait for each other only once, at the end. Softmax is online: a running maximum of each cluster, and sums
// rescaled when it moves.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged
// @import kernels/gpu/lib/sums_f32 as sums
// @import kernels/gpu/prologue/none as prologue

const WG: u32 = 64u;
const ROWS: u32 = 4u;
const KEYS: u32 = 4u;
const LANES: u32 = 8u;           // of a cluster
const K_QUADS: u32 = 4u;         // vectors of four of a key that a lane has
const V_QUADS: u32 = 4u;
const K_EVEN: bool = true;       // lanes have as many vectors, none is beyond a key
const V_EVEN: bool = true;
const BLOCK: u32 = 32u;          // positions of a block of the cache
// A maximum starts above what positions score that are not there, so that these weigh nothing; each of
// eight lanes adds its part of that.
const HALF_LOWEST: f32 = -1.7014117e38;
const EIGHTH: f32 = -3e37;
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;
const CLUSTERS: u32 = WG / LANES;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> largest: array<f32, CLUSTERS * ROWS>;
var<workgroup> totals: array<f32, CLUSTERS * ROWS>;
var<workgroup> shares: array<vec4<f32>, WG * V_QUADS>;

struct Sums {
    largest: array<f32, ROWS>,
    total: array<f32, ROWS>,
    sums: array<vec4<f32>, ROWS * V_QUADS>,
}

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
    let first = token * params.group + group.y % tiles * params.step;
    let last = min(first + params.step, (token + 1u) * params.group);
    // Neighbours in a subgroup are a cluster.
    let index = subgroup * width + place;
    let lane = index % LANES;
    let cluster = index / LANES;
    prologue_put(kv_head, thread, lane);
    var query: array<sums_Vector, ROWS * K_QUADS>;
    var powers: array<f32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        powers[r] = bring_query(&query, r, min(first + r, last - 1u), kv_head, lane);
    }
    let sequence = sequence_of(token);
    let range = part_of(seen_by(token), group.z);
    var state: Sums;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        state.largest[r] = HALF_LOWEST;
        if SINKS && group.z == 0u && cluster == 0u {
            state.largest[r] = max(sink_of(min(first + r, last - 1u), kv_head) * LOG2_E, HALF_LOWEST);
            state.total[r] = 1.0;
        }
    }
    for (var start = range.x / KEYS * KEYS; start < range.y; start += CLUSTERS * KEYS) {
        attend(&state, &query, powers, start + cluster * KEYS, range, sequence, first, last, kv_head, lane);
    }
    join_clusters(&state, lane, cluster);
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            shares[quad_of(i, V_QUADS, lane) * CLUSTERS + (cluster ^ (lane % CLUSTERS))] = state.sums[r * V_QUADS + i];
        }
        workgroupBarrier();
        if first + r < last {
            let at_r = place_of(first + r, kv_head, group.z);
            for (var quad = thread; quad < params.v_quads; quad += WG) {
                var sum_r = vec4<f32>(0.0);
                for (var t = 0u; t < CLUSTERS; t++) {
                    sum_r += shares[quad * CLUSTERS + t];
                }
                y[at_r + quad] = sum_r * scale_of(state.total[r]);
            }
            if params.splits > 1u && thread == 0u {
                y[at_r + params.v_quads] = vec4<f32>(state.largest[r] * LN_2, state.total[r], 0.0, 0.0);
            }
        }
        workgroupBarrier();
    }
}

// The vectors of a head that a lane has: neighbours two by two, so that lanes side by side read memory
// side by side.
fn quad_of(i: u32, each: u32, lane: u32) -> u32 {
    if each % 2u == 1u && i == each - 1u {
        return i * LANES + lane;
    }
    return i / 2u * 2u * LANES + 2u * lane + i % 2u;
}

// Bring a lane's share of a query, times the scale of scores; return what it was divided by.
fn bring_query(
    query: ptr<function, array<sums_Vector, ROWS * K_QUADS>>, r: u32, row: u32, kv_head: u32, lane: u32,
) -> f32 {
    let start = query_of(row, kv_head);
    let factor = norm_of(start, lane);
    let scale = query_factor(row) * select(LOG2_E, 1.0, CAPPED);
    var values: array<vec4<f32>, K_QUADS>;
    var largest = 0.0;
    // @unroll
    for (var i = 0u; i < K_QUADS; i++) {
        let quad_i = quad_of(i, K_QUADS, lane);
        if quad_i < params.k_quads {
            values[i] = prologue_query4(start, quad_i, factor) * scale;
        }
        let size_i = abs(values[i]);
        largest = max(largest, max(max(size_i.x, size_i.y), max(size_i.z, size_i.w)));
    }
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    largest = max(largest, subgroupShuffleXor(largest, 4u));
    let power = sums_power(largest);
    // @unroll
    for (var i = 0u; i < K_QUADS; i++) {
        (*query)[r * K_QUADS + i] = sums_Vector(values[i] / power);
    }
    return power;
}

// What the norm in front of a query multiplies it with; 1 where there is none.
fn norm_of(start: u32, lane: u32) -> f32 {
    if !prologue_NORMED {
        return 1.0;
    }
    var squares = 0.0;
    for (var quad = lane; quad < params.k_quads; quad += LANES) {
        let values = q_load4(start + 4u * quad);
        squares += dot(values, values);
    }
    return prologue_factor(across_lanes(squares));
}

// KEYS positions from `start` on, of which those in `range` count.
fn attend(
    state: ptr<function, Sums>, query: ptr<function, array<sums_Vector, ROWS * K_QUADS>>, powers: array<f32, ROWS>,
    start: u32, range: vec2<u32>, sequence: u32, first: u32, last: u32, kv_head: u32, lane: u32,
) {
    var slots = slots_of(sequence, start, range, kv_head);
    var scores: array<f32, ROWS * KEYS>;
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        let missing_p = select(EIGHTH, 0.0, start + p >= range.x && start + p < range.y);
        var key: array<sums_Vector, K_QUADS>;
        // @unroll
        for (var i = 0u; i < K_QUADS; i++) {
            let quad_i = quad_of(i, K_QUADS, lane);
            let apart_i = slots[p] * params.k_quads + min(quad_i, params.k_quads - 1u);
            key[i] = sums_Vector(k_load4(select(apart_i, slots[p] * (K_QUADS * LANES) + quad_i, K_EVEN)));
        }
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            scores[r * KEYS + p] = sums_score(missing_p, &key, query, r, powers[r]);
        }
    }
    var moves = false;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var p = 0u; p < KEYS; p++) {
            let score_p = across_lanes(scores[r * KEYS + p]);
            // What is not there stays far below all others.
            scores[r * KEYS + p] = select(score_p, capped(score_p) * LOG2_E, CAPPED && score_p > HALF_LOWEST);
            if ALIBI || BIASED {
                let bias_p = biased(0.0, min(first + r, last - 1u), kv_head, start + p);
                scores[r * KEYS + p] += bias_p * LOG2_E;
            }
            moves = moves || scores[r * KEYS + p] > (*state).largest[r];
        }
    }
    if moves {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            raise(state, r, highest_of(&scores, r));
        }
    }
    var made: array<sums_Vector, ROWS * V_QUADS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            made[r * V_QUADS + i] = sums_begin((*state).sums[r * V_QUADS + i]);
        }
    }
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let weight_r = exp2(scores[r * KEYS + p] - (*state).largest[r]);
            (*state).total[r] += weight_r;
            scores[r * KEYS + p] = weight_r;
        }
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            let quad_i = quad_of(i, V_QUADS, lane);
            let apart_i = value_at(slots[p]) + min(quad_i, params.v_quads - 1u);
            let value_i = sums_Vector(v_load4(select(apart_i, slots[p] * (V_QUADS * LANES) + quad_i, V_EVEN)));
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let weight_r = sums_Vector(vec4<f32>(scores[r * KEYS + p]));
                made[r * V_QUADS + i] = fma(value_i, weight_r, made[r * V_QUADS + i]);
            }
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            let sum_i = (*state).sums[r * V_QUADS + i];
            (*state).sums[r * V_QUADS + i] = sums_end(sum_i, made[r * V_QUADS + i]);
        }
    }
}

fn highest_of(scores: ptr<function, array<f32, ROWS * KEYS>>, r: u32) -> f32 {
    var highest = (*scores)[r * KEYS];
    // @unroll
    for (var p = 1u; p < KEYS; p++) {
        highest = max(highest, (*scores)[r * KEYS + p]);
    }
    return highest;
}

// Scale what a row has to a larger maximum, which few positions bring.
fn raise(state: ptr<function, Sums>, r: u32, highest: f32) {
    let larger = max((*state).largest[r], highest);
    let shrink = exp2((*state).largest[r] - larger);
    (*state).largest[r] = larger;
    (*state).total[r] *= shrink;
    // @unroll
    for (var i = 0u; i < V_QUADS; i++) {
        (*state).sums[r * V_QUADS + i] *= shrink;
    }
}

// Where the heads of KEYS positions lie, those outside the range being replaced by its ends. Positions
// from a multiple of KEYS on share a block where blocks are multiples of that.
fn slots_of(sequence: u32, start: u32, range: vec2<u32>, kv_head: u32) -> array<u32, KEYS> {
    var slots: array<u32, KEYS>;
    let row = params.table_offset + sequence * params.table_width;
    let shared_block = u32(table_load(row + clamp(start, range.x, range.y - 1u) / BLOCK));
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        let position_p = clamp(start + p, range.x, range.y - 1u);
        var block_p = shared_block;
        if BLOCK % KEYS != 0u {
            block_p = u32(table_load(row + position_p / BLOCK));
        }
        let row_p = min(block_p * BLOCK + position_p % BLOCK, params.k_rows - 1u);
        slots[p] = row_p * params.kv_heads + kv_head;
    }
    return slots;
}

fn across_lanes(part: f32) -> f32 {
    var sum = part;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 4u);
}

// Scales what a cluster has to the largest score of all, and gives each the total of all.
fn join_clusters(state: ptr<function, Sums>, lane: u32, cluster: u32) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if lane == 0u {
            largest[r * CLUSTERS + cluster] = (*state).largest[r];
            totals[r * CLUSTERS + cluster] = (*state).total[r];
        }
    }
    workgroupBarrier();
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        var highest_r = HALF_LOWEST;
        for (var t = 0u; t < CLUSTERS; t++) {
            highest_r = max(highest_r, largest[r * CLUSTERS + t]);
        }
        let shrink_r = exp2((*state).largest[r] - highest_r);
        var total_r = 0.0;
        for (var t = 0u; t < CLUSTERS; t++) {
            total_r += totals[r * CLUSTERS + t] * exp2(largest[r * CLUSTERS + t] - highest_r);
        }
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            (*state).sums[r * V_QUADS + i] *= shrink_r;
        }
        (*state).largest[r] = highest_r;
        (*state).total[r] = total_r;
    }
}
