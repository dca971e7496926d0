// Attention of many tokens, over a paged cache or plain keys, by matrix units. A work group takes
// ROWS rows, a row being a query head of one token, that share a head of keys, and every so many
// blocks of KEYS positions (a split). SHARES subgroups have rows of their own, whose queries they
// keep as matrices; they take every so many matrices of keys and of columns of values, whose sums
// they keep as matrices. Keys and then values of a block lie in workgroup memory as f16; scores and
// weights go through it, because WGSL leaves open which lane holds which value of a matrix. THREADS
// threads share a row and make its weights, relative to a score of the row that may be SLACK below
// its largest: only where scores grow beyond that, sums go through workgroup memory, too, to be
// multiplied row by row.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import lib/attention/paged_rows as source
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile
// @import lib/matrix/dawn_tile as weights
// @import lib/matrix/dawn_sums as scores
// @import kernels/gpu/lib/missing
// @import kernels/gpu/lib/no_powers as powers

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
const K_LANES: u32 = 8u;         // threads that bring a key
const K_ITEMS: u32 = 2u;         // vectors of it, of each
const K_ROWS: u32 = WG / K_LANES;
const K_ROUNDS: u32 = 1u;        // of K_ROWS keys
const KEY_TILES: u32 = 2u;       // of MAT_N keys, in a block, of each subgroup
const KEY_STEPS: u32 = 2u;       // of MAT_K keys, in a block
const V_VEC4S: u32 = 16u;
const V_TILES: u32 = 8u;         // of MAT_N columns, in a value
const V_PARTS: u32 = 8u;         // of these, of each subgroup
const V_SQUARES: u32 = 2u;       // of four values of four keys, that a thread brings
const V_STEP: u32 = 8u;          // vectors from a square to the thread's next one
const ROUNDS: u32 = 2u;          // of KEYS columns, in a value
const FOURS: u32 = 4u;           // vectors that a thread has of KEYS columns
const TILE: u32 = 576u;          // vectors of the largest of these
const PITCH: u32 = 18u;          // vectors from a row to the next, two more than it has, against bank conflicts
const GROWS: bool = true;        // without, what rows do whose scores grow is left out, for figures of costs
const SIXTEENS: u32 = KEYS / 16u;
const W_PITCH: u32 = KEYS / 4u + 2u;  // of weights, and of columns of values
const S_PITCH: u32 = KEYS + 8u;  // of scores, in numbers
const K_WIDTH: u32 = K_STEPS * MAT_K / 4u;
const QUERIES: u32 = RM * K_STEPS;
const SUMS: u32 = RM * V_PARTS;
const SLACK: f32 = 8.0;          // weights are below 2^8
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile: array<vec4<f16>, TILE>;                      // queries, then keys and columns of values
var<workgroup> scores: array<f32, ROWS * S_PITCH>;               // and columns of sums
var<workgroup> weights: array<vec4<f16>, ROWS * W_PITCH>;
var<workgroup> k_places: array<u32, KEYS>;                       // of a block's keys
var<workgroup> v_places: array<u32, KEYS>;
var<workgroup> growth: u32;                                      // whether sums shrink before a block's are added
var<workgroup> shared_row: array<f32, WG>;                       // what threads of a row exchange

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let first = (first_group() + group.y) * params.step;
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
    let key_power = power * power_of_keys();
    // The score that the row's weights are relative to.
    var base = HALF_LOWEST;
    var total = 0.0;
    if SINKS && group.z == 0u {
        base = max(sink_of(own, kv_head) * LOG2_E, HALF_LOWEST);
        total = select(0.0, 1.0, part == 0u);
    }
    var sums: array<MatrixSums, SUMS>;
    let end_token = (last + params.group - 1u) / params.group;
    var run = first / params.group;
    while run < end_token {
        let tokens = run_from(run, end_token);
        let end = tokens.seen.y;
        let seen = seen_in(tokens, first + row, last);
        let begin = first_in_turn(tokens.seen.x, group.z, KEYS);
        for (var start = begin; start < end; start += params.splits * KEYS) {
            if lane < KEYS {
                let places = places_of(tokens, min(start + lane, end - 1u), kv_head);
                k_places[lane] = places.x;
                v_places[lane] = places.y;
            }
            workgroupBarrier();
            if lane == 0u {
                growth = 0u;
            }
            bring_keys(lane);
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
            var highest = base;
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let four_f = part + f * THREADS;
                let products_f = four_at(row * S_PITCH + four_f * 4u) * key_power;
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
            var shrink = 1.0;
            if highest > base + SLACK {
                shrink = exp2(base - highest);
                // A row that saw nothing yet has no sums.
                if GROWS && base > HALF_LOWEST {
                    growth = 1u;
                }
                base = highest;
            }
            total *= shrink;
            // @unroll
            for (var f = 0u; f < FOURS; f++) {
                let weights_f = exp2(own_scores[f] - base);
                total += (weights_f.x + weights_f.y) + (weights_f.z + weights_f.w);
                weights[row * W_PITCH + part + f * THREADS] = vec4<f16>(weights_f);
            }
            bring_values(lane);
            if workgroupUniformLoad(&growth) != 0u && GROWS {
                // @unroll
                for (var round = 0u; round < ROUNDS; round++) {
                    put_sums(round, block, first_tile, &sums);
                    workgroupBarrier();
                    // @unroll
                    for (var f = 0u; f < FOURS; f++) {
                        let at_f = row * S_PITCH + (part + f * THREADS) * 4u;
                        // @unroll
                        for (var c = 0u; c < 4u; c++) {
                            scores[at_f + c] *= shrink;
                        }
                    }
                    workgroupBarrier();
                    get_sums(round, block, first_tile, &sums);
                    workgroupBarrier();
                }
            }
            // @unroll
            for (var s = 0u; s < KEY_STEPS; s++) {
                var weights_s = array<MatrixRows, RM>();
                // @unroll
                for (var i = 0u; i < RM; i++) {
                    weights_s[i] = weights_rows((block + i * MAT_M) * W_PITCH + s * (MAT_K / 4u), W_PITCH);
                }
                // @unroll
                for (var j = 0u; j < V_PARTS; j++) {
                    // Subgroups without a matrix of the last columns repeat the last one; its sums are not read.
                    let column_j = min(j * SHARES * MAT_N + first_tile, (V_TILES - 1u) * MAT_N);
                    let values_j = tile_columns(column_j * W_PITCH + s * (MAT_K / 4u), W_PITCH);
                    // @unroll
                    for (var i = 0u; i < RM; i++) {
                        sums[j * RM + i] = multiply_add(weights_s[i], values_j, sums[j * RM + i]);
                    }
                }
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
    let there = first + row < last;
    let own_at = row_place(min(first + row, last - 1u), kv_head, group.z) + part;
    let scale = scale_of(total) * power_of_values();
    // @unroll
    for (var round = 0u; round < ROUNDS; round++) {
        put_sums(round, block, first_tile, &sums);
        workgroupBarrier();
        // @unroll
        for (var f = 0u; f < FOURS; f++) {
            // Not the numbers of a query's columns: compilers would keep those in registers until here.
            let columns_f = round * (KEYS / 4u) + f * THREADS;
            if there && part < max(V_VEC4S, columns_f) - columns_f {
                y[own_at + columns_f] = four_at(row * S_PITCH + (part + f * THREADS) * 4u) * scale;
            }
        }
        workgroupBarrier();
    }
    if there && params.splits > 1u && part == 0u {
        y[own_at + V_VEC4S] = vec4<f32>(base * LN_2, total, 0.0, 0.0);
    }
}

// Sums of the columns of a round, into the memory of scores.
fn put_sums(round: u32, block: u32, first_tile: u32, sums: ptr<function, array<MatrixSums, SUMS>>) {
    // @unroll
    for (var j = 0u; j < KEY_TILES; j++) {
        if round * KEY_TILES + j < V_PARTS {
            // @unroll
            for (var i = 0u; i < RM; i++) {
                let at_i = (block + i * MAT_M) * S_PITCH + j * SHARES * MAT_N + first_tile;
                scores_put_rows(at_i, (*sums)[(round * KEY_TILES + j) * RM + i], S_PITCH);
            }
        }
    }
}

fn get_sums(round: u32, block: u32, first_tile: u32, sums: ptr<function, array<MatrixSums, SUMS>>) {
    // @unroll
    for (var j = 0u; j < KEY_TILES; j++) {
        if round * KEY_TILES + j < V_PARTS {
            // @unroll
            for (var i = 0u; i < RM; i++) {
                let at_i = (block + i * MAT_M) * S_PITCH + j * SHARES * MAT_N + first_tile;
                (*sums)[(round * KEY_TILES + j) * RM + i] = scores_sums(at_i, S_PITCH);
            }
        }
    }
}

// Store the query of a row, times the scale of scores, at `place`, divided by the power of two that
// is returned. Each thread of a row stores a part; all find the same power.
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

fn bring_keys(lane: u32) {
    let own = lane % K_LANES;
    // @unroll
    for (var r = 0u; r < K_ROUNDS; r++) {
        let key_r = lane / K_LANES + r * K_ROWS;
        if KEYS % K_ROWS == 0u || key_r < KEYS {
            let place_r = k_places[key_r];
            // @unroll
            for (var i = 0u; i < K_ITEMS; i++) {
                let at_i = own + i * K_LANES;
                let there_i = select(at_i, min(at_i, K_VEC4S - 1u), K_WIDTH > K_VEC4S);
                let zero_i = K_WIDTH > K_VEC4S && at_i >= K_VEC4S;
                tile[key_r * PITCH + at_i] = vec4<f16>(select(k_load4(place_r + there_i), vec4<f32>(), zero_i));
            }
        }
    }
}

// Load values transposed, as the matrix product needs them: squares of four keys by four columns
// are transposed in registers. Four threads in a row take sixteen keys; a thread has the same four
// keys in all of its squares.
fn bring_values(lane: u32) {
    let four = lane / 4u % SIXTEENS * 4u + lane % 4u;
    // @unroll
    for (var j = 0u; j < V_SQUARES; j++) {
        let column_j = lane / 4u / SIXTEENS + j * V_STEP;
        if V_VEC4S % V_STEP == 0u || column_j < V_VEC4S {
            var values_j = array<vec4<f32>, 4>();
            // @unroll
            for (var c = 0u; c < 4u; c++) {
                values_j[c] = v_load4(v_places[4u * four + c] + column_j);
            }
            // @unroll
            for (var c = 0u; c < 4u; c++) {
                let four_c = vec4<f32>(values_j[0][c], values_j[1][c], values_j[2][c], values_j[3][c]);
                tile[(column_j * 4u + c) * W_PITCH + four] = vec4<f16>(four_c);
            }
        }
    }
}

fn four_at(at: u32) -> vec4<f32> {
    return vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
}

// Scores of four positions as a row has them that sees `seen`.
fn shown(products: vec4<f32>, row: u32, kv_head: u32, position: u32, seen: vec2<u32>) -> vec4<f32> {
    var four = products;
    // Positions before the first wrap around.
    let apart = vec4<u32>(position, position + 1u, position + 2u, position + 3u) - vec4<u32>(seen.x);
    var sees = apart < vec4<u32>(seen.y - seen.x);
    // @unroll
    for (var c = 0u; c < 4u; c++) {
        if CAPPED {
            four[c] = capped(four[c]) * LOG2_E;
        }
        if ALIBI || BIASED {
            four[c] = max(four[c] + biased(0.0, row, kv_head, position + c) * LOG2_E, LEAST_SCORE);
        }
        sees[c] = sees[c] && is_shown(row, kv_head, position + c);
    }
    return select(vec4<f32>(MISSING), four, sees);
}
