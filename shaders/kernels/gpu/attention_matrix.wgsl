// Attention of many tokens, over a paged cache or plain keys, by matrix units. A work group takes ROWS rows, a row
// being a query head of one token, that share a head of keys, and every so many blocks of KEYS positions (a split).
// SHARES subgroups have rows of their own, whose queries they keep as matrices; they take every so many matrices of keys
// and of columns of values. Keys and then values of a block lie in workgroup
// memory as f16; scores, weights and a block's sums go through it, as only there it is known which lane has
// which value. THREADS threads share a row: they make its weights and keep its sums, in f32.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import lib/attention/paged_rows as source
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile
// @import lib/matrix/dawn_tile as weights
// @import lib/matrix/dawn_sums as scores
// @import kernels/gpu/lib/missing

const SUBGROUP: u32 = 32u;
const SHARES: u32 = 1u;          // subgroups that share rows
const THREADS: u32 = 2u;         // of a row: a power of two
const ROWS: u32 = 32u;
const KEYS: u32 = 32u;           // of a block
const WG: u32 = ROWS * THREADS;
const RM: u32 = 1u;              // matrices of a subgroup, along rows
const K_VEC4S: u32 = 16u;        // vectors of four of a key
const K_STEPS: u32 = 4u;         // of MAT_K columns, in a key and zeros after it
const Q_ITEMS: u32 = 8u;         // vectors of its query that each thread of a row brings
const K_ITEMS: u32 = 8u;         // vectors of a block's keys that a thread brings
const KEY_TILES: u32 = 2u;       // of MAT_N keys, in a block, of each subgroup
const KEY_STEPS: u32 = 2u;       // of MAT_K keys, in a block
const V_VEC4S: u32 = 16u;
const V_TILES: u32 = 8u;         // of MAT_N columns, in a value
const V_SQUARES: u32 = 2u;       // of four values of four keys, that a thread brings
const ROUNDS: u32 = 2u;          // of KEYS columns, in a value
const FOURS: u32 = 4u;           // vectors that a thread has of KEYS columns
const TILE: u32 = 576u;          // vectors of the largest of these
const SUMS: u32 = ROUNDS * FOURS;
const PITCH: u32 = 18u;          // vectors from a row to the next, two more than it has, against bank conflicts
const RANGED: bool = false;      // keys and values may be too large for f16, so a block is divided by a power of two
const W_PITCH: u32 = KEYS / 4u + 2u;  // of weights, and of columns of values
const S_PITCH: u32 = KEYS + 8u;  // of scores, in numbers
const K_WIDTH: u32 = K_STEPS * MAT_K / 4u;
const QUERIES: u32 = RM * K_STEPS;
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile: array<vec4<f16>, TILE>;                      // queries, then keys and columns of values
var<workgroup> scores: array<f32, ROWS * S_PITCH>;               // and sums of a block
var<workgroup> weights: array<vec4<f16>, ROWS * W_PITCH>;
var<workgroup> places: array<vec2<u32>, KEYS>;                   // of keys and values
var<workgroup> largest_bits: array<atomic<u32>, 2>;              // of the magnitudes of a block's keys, and values
var<workgroup> shared_row: array<f32, WG>;                       // what threads of a row exchange

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let first = group.y * params.step;
    let last = min(first + params.step, params.rows);
    let block = lane / SUBGROUP / SHARES * RM * MAT_M;
    // Where the first matrix of a subgroup lies among those of a block.
    let first_tile = lane / SUBGROUP % SHARES * MAT_N;
    let row = lane / THREADS;
    let part = lane % THREADS;
    let own = min(first + row, last - 1u);
    let power = bring_query(own, row, kv_head, lane);
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
                places[lane] = places_of(tokens, min(start + lane, end - 1u), kv_head);
            }
            if RANGED && lane < 2u {
                atomicStore(&largest_bits[lane], 0u);
            }
            workgroupBarrier();
            let key_power = bring_keys(lane);
            workgroupBarrier();
            // @unroll
            for (var j = 0u; j < KEY_TILES; j++) {
                var made = array<MatrixSums, RM>();
                // @unroll
                for (var s = 0u; s < K_STEPS; s++) {
                    let keys_s = tile_columns((j * SHARES * MAT_N + first_tile) * PITCH + s * (MAT_K / 4u), PITCH);
                    // @unroll
                    for (var i = 0u; i < RM; i++) {
                        made[i] = multiply_add(queries[i * K_STEPS + s], keys_s, made[i]);
                    }
                }
                // @unroll
                for (var i = 0u; i < RM; i++) {
                    scores_put_rows((block + i * MAT_M) * S_PITCH + j * SHARES * MAT_N + first_tile, made[i], S_PITCH);
                }
            }
            workgroupBarrier();
            var own_scores = array<vec4<f32>, FOURS>();
            var highest = largest;
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let four_f = part + f * THREADS;
                let products_f = four_at(row * S_PITCH + four_f * 4u) * power * key_power;
                own_scores[f] = shown(products_f, own, kv_head, start + four_f * 4u, seen);
                let most_f = max(own_scores[f].xy, own_scores[f].zw);
                highest = max(highest, max(most_f.x, most_f.y));
            }
            if THREADS > 1u {
                shared_row[lane] = highest;
                workgroupBarrier();
                // @unroll
                for (var t = 1u; t < THREADS; t++) {
                    highest = max(highest, shared_row[lane ^ t]);
                }
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
            let value_power = bring_values(lane);
            workgroupBarrier();
            // @unroll
            for (var round = 0u; round < ROUNDS; round++) {
                // @unroll
                for (var j = 0u; j < KEY_TILES; j++) {
                    if round * KEYS + j * SHARES * MAT_N < 4u * V_VEC4S {
                        // Subgroups without a matrix of the last columns repeat the last one; its sums are not read.
                        let column_j = min(round * KEYS + j * SHARES * MAT_N + first_tile, (V_TILES - 1u) * MAT_N);
                        var made = array<MatrixSums, RM>();
                        // @unroll
                        for (var s = 0u; s < KEY_STEPS; s++) {
                            let values_s = tile_columns(column_j * W_PITCH + s * (MAT_K / 4u), W_PITCH);
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
                            scores_put_rows((block + i * MAT_M) * S_PITCH + j * SHARES * MAT_N + first_tile, made[i], S_PITCH);
                        }
                    }
                }
                workgroupBarrier();
                // @unroll
                for (var f = 0u; f < FOURS; f++) {
                    if round * (KEYS / 4u) + f * THREADS < V_VEC4S {
                        let sum_f = four_at(row * S_PITCH + (part + f * THREADS) * 4u) * value_power;
                        sums[round * FOURS + f] = fma(sums[round * FOURS + f], vec4<f32>(shrink), sum_f);
                    }
                }
                workgroupBarrier();
            }
        }
        run = tokens.end;
    }
    if THREADS > 1u {
        shared_row[lane] = total;
        workgroupBarrier();
        total = 0.0;
        // All threads of a row add in one order, so that they have one sum.
        // @unroll
        for (var t = 0u; t < THREADS; t++) {
            total += shared_row[row * THREADS + t];
        }
    }
    if first + row < last {
        let at = row_place(first + row, kv_head, group.z);
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
// divided by a power of two. Each thread of a row brings a part; all find the same power.
fn bring_query(row: u32, place: u32, kv_head: u32, lane: u32) -> f32 {
    let start = query_of(row, kv_head);
    let scale = query_factor(row) * select(LOG2_E, 1.0, CAPPED);
    let part = lane % THREADS;
    var values = array<vec4<f32>, Q_ITEMS>();
    var most = vec4<f32>();
    // @unroll
    for (var j = 0u; j < Q_ITEMS; j++) {
        let at_j = part + j * THREADS;
        let value_j = q_load4(start + 4u * min(at_j, K_VEC4S - 1u)) * scale;
        values[j] = select(vec4<f32>(), value_j, at_j < K_VEC4S);
        most = max(most, abs(values[j]));
    }
    var largest = max(max(most.x, most.y), max(most.z, most.w));
    if THREADS > 1u {
        shared_row[lane] = largest;
        workgroupBarrier();
        // @unroll
        for (var t = 1u; t < THREADS; t++) {
            largest = max(largest, shared_row[lane ^ t]);
        }
    }
    let exponent = clamp(bitcast<u32>(largest) >> 23u, 8u, 240u);
    let inverse = bitcast<f32>((251u - exponent) << 23u);
    // @unroll
    for (var j = 0u; j < Q_ITEMS; j++) {
        tile[place * PITCH + part + j * THREADS] = vec4<f16>(values[j] * inverse);
    }
    return bitcast<f32>((exponent + 3u) << 23u);
}

// Bring keys, divided by the power of two that is returned.
fn bring_keys(lane: u32) -> f32 {
    var keys = array<vec4<f32>, K_ITEMS>();
    var most = vec4<f32>();
    // @unroll
    for (var j = 0u; j < K_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * K_WIDTH % WG == 0u || i_j < KEYS * K_WIDTH {
            let at_j = i_j % K_WIDTH;
            let value_j = k_load4(places[i_j / K_WIDTH].x + min(at_j, K_VEC4S - 1u));
            let zero_j = K_WIDTH > K_VEC4S && at_j >= K_VEC4S;
            keys[j] = select(value_j, vec4<f32>(), zero_j);
            most = max(most, abs(keys[j]));
        }
    }
    let power = power_of(0u, most);
    // @unroll
    for (var j = 0u; j < K_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * K_WIDTH % WG == 0u || i_j < KEYS * K_WIDTH {
            tile[i_j / K_WIDTH * PITCH + i_j % K_WIDTH] = vec4<f16>(keys[j] * power.y);
        }
    }
    return power.x;
}

// Bring values by columns, so that those of a column lie as a matrix has them: squares of four keys by four columns
// turn in registers.
fn bring_values(lane: u32) -> f32 {
    var values = array<vec4<f32>, 4u * V_SQUARES>();
    var most = vec4<f32>();
    // @unroll
    for (var j = 0u; j < V_SQUARES; j++) {
        let i_j = lane + j * WG;
        if KEYS / 4u * V_VEC4S % WG == 0u || i_j < KEYS / 4u * V_VEC4S {
            // @unroll
            for (var c = 0u; c < 4u; c++) {
                let value_c = v_load4(places[4u * four_of(i_j) + c].y + i_j / 4u % V_VEC4S);
                values[4u * j + c] = value_c;
                most = max(most, abs(value_c));
            }
        }
    }
    let power = power_of(1u, most);
    // @unroll
    for (var j = 0u; j < V_SQUARES; j++) {
        let i_j = lane + j * WG;
        if KEYS / 4u * V_VEC4S % WG == 0u || i_j < KEYS / 4u * V_VEC4S {
            // @unroll
            for (var c = 0u; c < 4u; c++) {
                let four_c = vec4<f32>(values[4u * j][c], values[4u * j + 1u][c], values[4u * j + 2u][c], values[4u * j + 3u][c]);
                tile[(i_j / 4u % V_VEC4S * 4u + c) * W_PITCH + four_of(i_j)] = vec4<f16>(four_c * power.y);
            }
        }
    }
    return power.x;
}

// Which four keys square `i` has: those of four squares in a row lie side by side.
fn four_of(i: u32) -> u32 {
    return i / (4u * V_VEC4S) * 4u + i % 4u;
}

// The power of two that brings the largest magnitude of a block to 2^14 or above, and its inverse; `most` are
// magnitudes of a thread. Values of f16 stay as they are.
fn power_of(which: u32, most: vec4<f32>) -> vec2<f32> {
    if !RANGED {
        return vec2<f32>(1.0);
    }
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    let bits = bitcast<vec4<u32>>(most);
    atomicMax(&largest_bits[which], max(max(bits.x, bits.y), max(bits.z, bits.w)));
    workgroupBarrier();
    let exponent = clamp(atomicLoad(&largest_bits[which]) >> 23u, 27u, 249u);
    return vec2<f32>(bitcast<f32>((exponent - 14u) << 23u), bitcast<f32>((268u - exponent) << 23u));
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
