// Attention of prompts over a paged cache, by matrix units. A work group takes ROWS rows, a row being a query
// head of one token, that share a head of the cache, and every so many blocks of KEYS positions (a split). Each
// subgroup has its own rows, whose queries it keeps as matrices. Keys and then values of a block lie in workgroup
// memory as f16; scores, weights and a block's sums go through it, as only there it is known which lane has
// which value. THREADS threads share a row: they make its weights and keep its sums, in f32.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile
// @import lib/matrix/dawn_tile as weights
// @import lib/matrix/dawn_sums as scores
// @import kernels/gpu/lib/missing

const SUBGROUP: u32 = 32u;
const THREADS: u32 = 2u;         // of a row: one or two
const ROWS: u32 = 32u;
const KEYS: u32 = 32u;           // of a block
const WG: u32 = ROWS * THREADS;
const RM: u32 = 1u;              // matrices of a subgroup, along rows
const K_VEC4S: u32 = 16u;        // vectors of four of a key
const K_STEPS: u32 = 4u;         // of MAT_K columns, in a key and zeros after it
const K_ITEMS: u32 = 8u;         // vectors of a block's keys that a thread brings
const KEY_TILES: u32 = 2u;       // of MAT_N keys, in a block
const KEY_STEPS: u32 = 2u;       // of MAT_K keys, in a block
const V_VEC4S: u32 = 16u;
const V_ITEMS: u32 = 8u;
const ROUNDS: u32 = 2u;          // of KEYS columns, in a value
const FOURS: u32 = 4u;           // vectors that a thread has of KEYS columns
const SUMS: u32 = ROUNDS * FOURS;
const PITCH: u32 = 18u;          // vectors from a row to the next, two more than it has, against bank conflicts
const W_PITCH: u32 = KEYS / 4u + 2u;
const S_PITCH: u32 = KEYS + 8u;  // of scores, in numbers
const K_WIDTH: u32 = K_STEPS * MAT_K / 4u;
const QUERIES: u32 = RM * K_STEPS;
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile: array<vec4<f16>, max(ROWS, KEYS) * PITCH>;  // queries, then keys and values
var<workgroup> scores: array<f32, ROWS * S_PITCH>;               // and sums of a block
var<workgroup> weights: array<vec4<f16>, ROWS * W_PITCH>;
var<workgroup> slots: array<u32, KEYS>;
var<workgroup> shared_row: array<f32, WG>;                       // what threads of a row exchange

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let first = group.y * params.step;
    let last = min(first + params.step, params.rows);
    let block = lane / SUBGROUP * RM * MAT_M;
    let row = lane / THREADS;
    let part = lane % THREADS;
    let own = min(first + row, last - 1u);
    let power = bring_query(own, row, kv_head, part);
    workgroupBarrier();
    var queries: array<MatrixRows, QUERIES>;
    // @unroll
    for (var i = 0u; i < RM; i++) {
        // @unroll
        for (var s = 0u; s < K_STEPS; s++) {
            queries[i * K_STEPS + s] = tile_rows((block + i * MAT_M) * PITCH + s * (MAT_K / 4u), PITCH);
        }
    }
    var largest = HALF_LOWEST;
    var total = 0.0;
    if SINKS && group.z == 0u {
        largest = max(sink_of(own, kv_head) * LOG2_E, HALF_LOWEST);
        total = select(0.0, 1.0, part == 0u);
    }
    var sums = array<vec4<f32>, SUMS>();
    let end_token = (last + params.group - 1u) / params.group;
    var run = first / params.group;
    while run < end_token {
        let tokens = run_from(run, end_token);
        let end = tokens.seen.y;
        let seen = seen_in(tokens, first + row, last);
        let begin = first_in_turn(tokens.seen.x, group.z, KEYS);
        for (var start = begin; start < end; start += params.splits * KEYS) {
            if lane < KEYS {
                slots[lane] = cache_row(tokens.sequence, min(start + lane, end - 1u)) * params.kv_heads + kv_head;
            }
            workgroupBarrier();
            bring_keys(lane);
            workgroupBarrier();
            // @unroll
            for (var j = 0u; j < KEY_TILES; j++) {
                var made = array<MatrixSums, RM>();
                // @unroll
                for (var s = 0u; s < K_STEPS; s++) {
                    let keys_s = tile_columns(j * MAT_N * PITCH + s * (MAT_K / 4u), PITCH);
                    // @unroll
                    for (var i = 0u; i < RM; i++) {
                        made[i] = multiply_add(queries[i * K_STEPS + s], keys_s, made[i]);
                    }
                }
                // @unroll
                for (var i = 0u; i < RM; i++) {
                    scores_put_rows((block + i * MAT_M) * S_PITCH + j * MAT_N, made[i], S_PITCH);
                }
            }
            workgroupBarrier();
            var own_scores = array<vec4<f32>, FOURS>();
            var highest = largest;
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let four_f = part + f * THREADS;
                own_scores[f] = shown(four_at(row * S_PITCH + four_f * 4u) * power, own, kv_head, start + four_f * 4u, seen);
                let most_f = max(own_scores[f].xy, own_scores[f].zw);
                highest = max(highest, max(most_f.x, most_f.y));
            }
            if THREADS > 1u {
                shared_row[lane] = highest;
                workgroupBarrier();
                highest = max(highest, shared_row[lane ^ 1u]);
            }
            let shrink = exp2(largest - highest);
            largest = highest;
            total *= shrink;
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let weights_f = exp2(own_scores[f] - highest);
                total += (weights_f.x + weights_f.y) + (weights_f.z + weights_f.w);
                weights[row * W_PITCH + part + f * THREADS] = vec4<f16>(weights_f);
            }
            bring_values(lane);
            workgroupBarrier();
            // @unroll
            for (var round = 0u; round < ROUNDS; round++) {
                // @unroll
                for (var j = 0u; j < KEY_TILES; j++) {
                    var made = array<MatrixSums, RM>();
                    // @unroll
                    for (var s = 0u; s < KEY_STEPS; s++) {
                        let values_s = tile_across(
                            s * MAT_K * PITCH + (round * KEYS + j * MAT_N) / 4u, PITCH,
                        );
                        // @unroll
                        for (var i = 0u; i < RM; i++) {
                            let weights_i = weights_rows(
                                (block + i * MAT_M) * W_PITCH + s * (MAT_K / 4u), W_PITCH,
                            );
                            made[i] = multiply_add(weights_i, values_s, made[i]);
                        }
                    }
                    // @unroll
                    for (var i = 0u; i < RM; i++) {
                        scores_put_rows((block + i * MAT_M) * S_PITCH + j * MAT_N, made[i], S_PITCH);
                    }
                }
                workgroupBarrier();
                // @unroll
                for (var f = 0u; f < FOURS; f++) {
                    let sum_f = four_at(row * S_PITCH + (part + f * THREADS) * 4u);
                    sums[round * FOURS + f] = fma(sums[round * FOURS + f], vec4<f32>(shrink), sum_f);
                }
                workgroupBarrier();
            }
        }
        run = tokens.end;
    }
    if THREADS > 1u {
        shared_row[lane] = total;
        workgroupBarrier();
        total += shared_row[lane ^ 1u];
    }
    if first + row < last {
        let at = place_of(first + row, kv_head, group.z);
        // @unroll
        for (var round = 0u; round < ROUNDS; round++) {
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let column_f = round * (KEYS / 4u) + part + f * THREADS;
                if column_f < V_VEC4S {
                    y[at + column_f] = sums[round * FOURS + f] * scale_of(total);
                }
            }
        }
        if params.splits > 1u && part == 0u {
            y[at + V_VEC4S] = vec4<f32>(largest * LN_2, total, 0.0, 0.0);
        }
    }
}

// Bring the query of a row, times the scale of scores, to `place`; return what its products lack: it is
// divided by a power of two. All threads of a row find the same power.
fn bring_query(row: u32, place: u32, kv_head: u32, part: u32) -> f32 {
    let start = query_of(row, kv_head);
    let scale = query_factor(row) * select(LOG2_E, 1.0, CAPPED);
    var most = vec4<f32>();
    for (var vec4_index = 0u; vec4_index < K_VEC4S; vec4_index++) {
        most = max(most, abs(q_load4(start + 4u * vec4_index) * scale));
    }
    let largest = max(max(most.x, most.y), max(most.z, most.w));
    let exponent = clamp(bitcast<u32>(largest) >> 23u, 8u, 240u);
    let inverse = bitcast<f32>((251u - exponent) << 23u);
    for (var vec4_index = part; vec4_index < K_WIDTH; vec4_index += THREADS) {
        let values = q_load4(start + 4u * min(vec4_index, K_VEC4S - 1u)) * scale * inverse;
        tile[place * PITCH + vec4_index] = vec4<f16>(select(vec4<f32>(), values, vec4_index < K_VEC4S));
    }
    return bitcast<f32>((exponent + 3u) << 23u);
}

fn bring_keys(lane: u32) {
    // @unroll
    for (var j = 0u; j < K_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * K_WIDTH % WG == 0u || i_j < KEYS * K_WIDTH {
            let at_j = i_j % K_WIDTH;
            let value_j = k_load4(slots[i_j / K_WIDTH] * K_VEC4S + min(at_j, K_VEC4S - 1u));
            let zero_j = K_WIDTH > K_VEC4S && at_j >= K_VEC4S;
            tile[i_j / K_WIDTH * PITCH + at_j] = vec4<f16>(select(value_j, vec4<f32>(), zero_j));
        }
    }
}

fn bring_values(lane: u32) {
    // @unroll
    for (var j = 0u; j < V_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * V_VEC4S % WG == 0u || i_j < KEYS * V_VEC4S {
            tile[i_j / V_VEC4S * PITCH + i_j % V_VEC4S] = vec4<f16>(v_load4(slots[i_j / V_VEC4S] * V_VEC4S + i_j % V_VEC4S));
        }
    }
}

fn four_at(at: u32) -> vec4<f32> {
    return vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
}

// Scores of four positions as a row has them that sees `seen`.
fn shown(products: vec4<f32>, row: u32, kv_head: u32, position: u32, seen: vec2<u32>) -> vec4<f32> {
    var four = products;
    // @unroll
    for (var c = 0u; c < 4u; c++) {
        if CAPPED {
            four[c] = capped(four[c]) * LOG2_E;
        }
        if ALIBI || BIASED {
            four[c] += biased(0.0, row, kv_head, position + c) * LOG2_E;
        }
    }
    // Positions before the first wrap around.
    let apart = vec4<u32>(position, position + 1u, position + 2u, position + 3u) - vec4<u32>(seen.x);
    return select(vec4<f32>(MISSING), four, apart < vec4<u32>(seen.y - seen.x));
}
