// Causal attention of tokens that share no keys, over a paged cache, for subgroups of eight lanes or
// more. A work group takes ROWS query heads of one token that share a head of the cache, and one range
// of positions (a split). Eight lanes, a cluster, read a key straight into registers, KEYS of them at a
// time, and add up what each makes of its share; nothing is brought through workgroup memory, and clusters
// wait for each other only once, at the end. Softmax is online: a running maximum of each cluster, and sums
// rescaled when it moves.
// @import load/f32 as q
// @import vec4/f32 as k
// @import vec4/f32 as v
// @import load/i32 as positions
// @import load/i32 as sequences
// @import lib/paged
// @import kernels/gpu/prologue/none as before

const WG: u32 = 64u;
const ROWS: u32 = 4u;
const KEYS: u32 = 4u;
const LANES: u32 = 8u;           // of a cluster
const K_QUADS: u32 = 4u;         // vectors of four of a key that a lane has
const V_QUADS: u32 = 4u;
const K_EVEN: bool = true;       // lanes have as many vectors, none is beyond a key
const V_EVEN: bool = true;
const BLOCK: u32 = 32u;          // positions of a block of the cache
// A maximum starts above what positions score that are not there, so that these weigh nothing.
const HALF_LOWEST: f32 = -1.7014117e38;
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
    before_put(kv_head, thread, lane);
    var query: array<vec4<f32>, ROWS * K_QUADS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let at_r = query_of(min(first + r, last - 1u), kv_head);
        let factor_r = norm_of(at_r, lane);
        // @unroll
        for (var i = 0u; i < K_QUADS; i++) {
            let quad_i = quad_of(i, K_QUADS, lane);
            if quad_i < params.k_quads {
                query[r * K_QUADS + i] = before_query4(at_r, quad_i, factor_r) * params.scale;
            }
        }
    }
    let sequence = sequence_of(token);
    let range = part_of(seen_by(token), group.z);
    var state: Sums;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        state.largest[r] = HALF_LOWEST;
    }
    for (var start = range.x; start < range.y; start += CLUSTERS * KEYS) {
        attend(&state, &query, start + cluster * KEYS, range.y, sequence, kv_head, lane);
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
                y[at_r + params.v_quads] = vec4<f32>(state.largest[r], state.total[r], 0.0, 0.0);
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

// What the norm in front of a query multiplies it with; 1 where there is none.
fn norm_of(start: u32, lane: u32) -> f32 {
    if !before_NORMED {
        return 1.0;
    }
    var squares = 0.0;
    for (var quad = lane; quad < params.k_quads; quad += LANES) {
        let values = q_load4(start + 4u * quad);
        squares += dot(values, values);
    }
    return before_factor(across_lanes(squares));
}

// KEYS positions from `start` on; those from `limit` on count nothing.
fn attend(
    state: ptr<function, Sums>, query: ptr<function, array<vec4<f32>, ROWS * K_QUADS>>, start: u32, limit: u32,
    sequence: u32, kv_head: u32, lane: u32,
) {
    var slots: array<u32, KEYS>;
    var scores: array<f32, ROWS * KEYS>;
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        slots[p] = row_of(sequence, min(start + p, limit - 1u)) * params.kv_heads + kv_head;
    }
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var i = 0u; i < K_QUADS; i++) {
            let quad_i = quad_of(i, K_QUADS, lane);
            let apart_i = slots[p] * params.k_quads + min(quad_i, params.k_quads - 1u);
            let key_i = k_load4(select(apart_i, slots[p] * (K_QUADS * LANES) + quad_i, K_EVEN));
            // @unroll
            for (var d = 0u; d < 4u; d++) {
                // @unroll
                for (var r = 0u; r < ROWS; r++) {
                    let part_r = scores[r * KEYS + p];
                    scores[r * KEYS + p] = fma(key_i[d], (*query)[r * K_QUADS + i][d], part_r);
                }
            }
        }
    }
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let score_r = capped(across_lanes(scores[r * KEYS + p]));
            scores[r * KEYS + p] = select(LOWEST, score_r, start + p < limit);
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        var highest_r = (*state).largest[r];
        // @unroll
        for (var p = 0u; p < KEYS; p++) {
            highest_r = max(highest_r, scores[r * KEYS + p]);
        }
        let shrink_r = exp((*state).largest[r] - highest_r);
        (*state).largest[r] = highest_r;
        (*state).total[r] *= shrink_r;
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            (*state).sums[r * V_QUADS + i] *= shrink_r;
        }
        // @unroll
        for (var p = 0u; p < KEYS; p++) {
            let weight_p = exp(scores[r * KEYS + p] - highest_r);
            (*state).total[r] += weight_p;
            scores[r * KEYS + p] = weight_p;
        }
    }
    // @unroll
    for (var p = 0u; p < KEYS; p++) {
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            let quad_i = quad_of(i, V_QUADS, lane);
            let apart_i = slots[p] * params.v_quads + min(quad_i, params.v_quads - 1u);
            let value_i = v_load4(select(apart_i, slots[p] * (V_QUADS * LANES) + quad_i, V_EVEN));
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let sum_r = (*state).sums[r * V_QUADS + i];
                (*state).sums[r * V_QUADS + i] = fma(value_i, vec4<f32>(scores[r * KEYS + p]), sum_r);
            }
        }
    }
}

// As cache_row of lib/paged, with blocks of a size that is known.
fn row_of(sequence: u32, position: u32) -> u32 {
    let block = table[params.table_offset + sequence * params.table_width + position / BLOCK];
    return min(u32(block) * BLOCK + position % BLOCK, params.k_rows - 1u);
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
        let shrink_r = exp((*state).largest[r] - highest_r);
        var total_r = 0.0;
        for (var t = 0u; t < CLUSTERS; t++) {
            total_r += totals[r * CLUSTERS + t] * exp(largest[r * CLUSTERS + t] - highest_r);
        }
        // @unroll
        for (var i = 0u; i < V_QUADS; i++) {
            (*state).sums[r * V_QUADS + i] *= shrink_r;
        }
        (*state).largest[r] = highest_r;
        (*state).total[r] = total_r;
    }
}
