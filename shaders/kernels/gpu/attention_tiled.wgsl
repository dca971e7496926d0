// Attention of many tokens, over a paged cache or plain keys, in pairs of f16. A work group takes ROWS rows, a row being
// a query head of one token, that share a head of keys, and every so many blocks of KEYS positions (a split).
// Keys and then values of a block lie in workgroup memory. Scores are sums of pairs of columns: eight lanes
// in a row, a cluster, share SCORE_ROWS rows and take every eighth key. Weights go through workgroup memory, rows side by
// side, so that a pair of a value's sums has two rows. Few products are summed in f16 before they go into f32.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import lib/attention/paged_rows as source
// @import kernels/gpu/lib/cluster_lanes
// @import kernels/gpu/lib/missing

const WG: u32 = 64u;
const ROWS: u32 = 32u;
const KEYS: u32 = 32u;           // of a block
const SCORE_ROWS: u32 = 4u;      // of a thread: 2 or 4
const SCORE_KEYS: u32 = 4u;
const SCORES: u32 = SCORE_ROWS * SCORE_KEYS;
const K_VEC4S: u32 = 16u;        // vectors of four of a key
const K_EIGHTS: u32 = 8u;        // columns by eight: those of a key, and zeros up to a multiple of K_STEP
const K_STEP: u32 = 2u;          // of them that are summed in f16
const K_ITEMS: u32 = 4u;         // eights of a block's keys that a thread brings
const V_VEC4S: u32 = 16u;
const V_EIGHTS: u32 = 8u;        // of a value, the last of which may be a half
const V_ITEMS: u32 = 4u;
const V_ROWS: u32 = 8u;          // 4 or 8 rows of which a thread sums values
const PAIRS: u32 = 4u;           // of these
const V_FOURS: u32 = 1u;         // vectors of a value whose sums a thread has
const V_LANES: u32 = 16u;        // threads that share a value
const SUMMED: u32 = 16u;         // weighted values that are summed in f16
const AT_ONCE: u32 = 4u;         // of them in a loop's body
const PITCH: u32 = 18u;          // vectors from a row to the next: two more than it has, against bank conflicts
const W_PITCH: u32 = ROWS / 4u + 2u;
const SUMS: u32 = V_ROWS * V_FOURS;  // in vectors of four columns
const RANGED: bool = false;      // keys and values may be too large for f16, so a block is divided by a power of two
const LOG2_E: f32 = 1.4426950408889634;  // scores are in powers of two
const LN_2: f32 = 0.6931471805599453;

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> query: array<vec4<f16>, ROWS * PITCH>;
var<workgroup> tile: array<vec4<f16>, KEYS * PITCH>;
var<workgroup> weights: array<vec4<f16>, KEYS * W_PITCH>;
var<workgroup> places: array<vec2<u32>, KEYS>;  // of keys and values
var<workgroup> largest_bits: array<atomic<u32>, 2>;  // of the magnitudes of a block's keys, and values
var<workgroup> seen: array<vec2<u32>, ROWS>;  // positions that each row sees in this run
var<workgroup> shrink: array<f32, ROWS>;
var<workgroup> tops: array<f32, ROWS>;

// Softmax of a thread's rows: the largest score, and the sum of the weights that the thread made.
struct Softmax { largest: array<f32, SCORE_ROWS>, total: array<f32, SCORE_ROWS> }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let first = (first_group() + group.y) * params.step;
    let last = min(first + params.step, params.rows);
    let key = lane % LANES;
    let row = lane / LANES * SCORE_ROWS;
    var powers: array<f32, SCORE_ROWS>;
    var state: Softmax;
    // @unroll
    for (var r = 0u; r < SCORE_ROWS; r++) {
        powers[r] = bring_query(min(first + row + r, last - 1u), row + r, kv_head, key);
        state.largest[r] = HALF_LOWEST;
        state.total[r] = 0.0;
        if SINKS && group.z == 0u {
            let sink_r = sink_of(min(first + row + r, last - 1u), kv_head);
            state.largest[r] = max(sink_r * LOG2_E, HALF_LOWEST);
            state.total[r] = select(0.0, 1.0, key == 0u);
        }
    }
    var sums = array<vec4<f32>, SUMS>();
    let value_row = lane / V_LANES * V_ROWS;
    let column = lane % V_LANES * V_FOURS;
    let end_token = (last + params.group - 1u) / params.group;
    var run = first / params.group;
    while run < end_token {
        let tokens = run_from(run, end_token);
        let end = tokens.seen.y;
        if lane < ROWS {
            seen[lane] = seen_in(tokens, first + lane, last);
        }
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
            var scores = score(row, key);
            weigh(&state, &scores, powers, key_power, vec2<u32>(first, last), kv_head, row, key, start + key);
            workgroupBarrier();
            let value_power = bring_values(lane);
            workgroupBarrier();
            // @unroll
            for (var r = 0u; r < V_ROWS; r++) {
                let shrink_r = shrink[value_row + r];
                // @unroll
                for (var f = 0u; f < V_FOURS; f++) {
                    sums[r * V_FOURS + f] *= shrink_r;
                }
            }
            add_values(&sums, value_row / 4u, column, value_power);
        }
        run = tokens.end;
        workgroupBarrier();
    }
    // @unroll
    for (var r = 0u; r < SCORE_ROWS; r++) {
        let total_r = across_lanes(state.total[r]);
        if key == 0u {
            shrink[row + r] = total_r;
            tops[row + r] = state.largest[r] * LN_2;
        }
    }
    workgroupBarrier();
    // @unroll
    for (var r = 0u; r < V_ROWS; r++) {
        let row_r = value_row + r;
        if first + row_r < last {
            let at_r = row_place(first + row_r, kv_head, group.z);
            let scale_r = scale_of(shrink[row_r]);
            // @unroll
            for (var f = 0u; f < V_FOURS; f++) {
                if column + f < V_VEC4S {
                    y[at_r + column + f] = sums[r * V_FOURS + f] * scale_r;
                }
            }
            if params.splits > 1u && column == 0u {
                y[at_r + V_VEC4S] = vec4<f32>(tops[row_r], shrink[row_r], 0.0, 0.0);
            }
        }
    }
}

// Store the query of a row, times the scale of scores, at `place`, divided by the power of two that
// is returned, so that sums of 32 products are no larger than eight keys are.
fn bring_query(row: u32, place: u32, kv_head: u32, lane: u32) -> f32 {
    let start = query_of(row, kv_head);
    let scale = query_factor(row) * select(LOG2_E, 1.0, CAPPED);
    var most = vec4<f32>();
    for (var vec4_index = lane; vec4_index < K_VEC4S; vec4_index += LANES) {
        most = max(most, abs(q_load4(start + 4u * vec4_index) * scale));
    }
    let largest = largest_across_lanes(max(max(most.x, most.y), max(most.z, most.w)));
    let exponent = clamp(bitcast<u32>(largest) >> 23u, 8u, 240u);
    let power = bitcast<f32>((exponent + 3u) << 23u);
    let inverse = bitcast<f32>((251u - exponent) << 23u);
    for (var vec4_index = lane; vec4_index < 2u * K_EIGHTS; vec4_index += LANES) {
        let values = q_load4(start + 4u * min(vec4_index, K_VEC4S - 1u)) * scale * inverse;
        query[place * PITCH + vec4_index] = vec4<f16>(select(vec4<f32>(), values, vec4_index < K_VEC4S));
    }
    return power;
}

// Load keys, divided by the power of two that is returned.
fn bring_keys(lane: u32) -> f32 {
    var held = array<vec4<f32>, 2u * K_ITEMS>();
    var most = vec4<f32>();
    // @unroll
    for (var j = 0u; j < K_ITEMS; j++) {
        let i_j = min(lane + j * WG, KEYS * K_EIGHTS - 1u);
        let at_j = i_j % K_EIGHTS * 2u;
        let start_j = places[i_j / K_EIGHTS].x;
        if K_VEC4S == 2u * K_EIGHTS {
            held[2u * j] = k_load4(start_j + at_j);
            held[2u * j + 1u] = k_load4(start_j + at_j + 1u);
        } else {
            let low_j = k_load4(start_j + min(at_j, K_VEC4S - 1u));
            let high_j = k_load4(start_j + min(at_j + 1u, K_VEC4S - 1u));
            held[2u * j] = select(vec4<f32>(), low_j, at_j < K_VEC4S);
            held[2u * j + 1u] = select(vec4<f32>(), high_j, at_j + 1u < K_VEC4S);
        }
        most = max(most, max(abs(held[2u * j]), abs(held[2u * j + 1u])));
    }
    let power = power_of(0u, most, lane);
    // @unroll
    for (var j = 0u; j < K_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * K_EIGHTS % WG == 0u || i_j < KEYS * K_EIGHTS {
            let at_j = i_j / K_EIGHTS * PITCH + i_j % K_EIGHTS * 2u;
            tile[at_j] = vec4<f16>(held[2u * j] * power.y);
            tile[at_j + 1u] = vec4<f16>(held[2u * j + 1u] * power.y);
        }
    }
    return power.x;
}

fn bring_values(lane: u32) -> f32 {
    var held = array<vec4<f32>, 2u * V_ITEMS>();
    var most = vec4<f32>();
    // @unroll
    for (var j = 0u; j < V_ITEMS; j++) {
        let i_j = min(lane + j * WG, KEYS * V_EIGHTS - 1u);
        let at_j = i_j % V_EIGHTS * 2u;
        let start_j = places[i_j / V_EIGHTS].y;
        held[2u * j] = v_load4(start_j + at_j);
        let next_j = select(min(at_j + 1u, V_VEC4S - 1u), at_j + 1u, V_VEC4S == 2u * V_EIGHTS);
        held[2u * j + 1u] = v_load4(start_j + next_j);
        most = max(most, max(abs(held[2u * j]), abs(held[2u * j + 1u])));
    }
    let power = power_of(1u, most, lane);
    // @unroll
    for (var j = 0u; j < V_ITEMS; j++) {
        let i_j = lane + j * WG;
        if KEYS * V_EIGHTS % WG == 0u || i_j < KEYS * V_EIGHTS {
            let at_j = i_j / V_EIGHTS * PITCH + i_j % V_EIGHTS * 2u;
            tile[at_j] = vec4<f16>(held[2u * j] * power.y);
            tile[at_j + 1u] = vec4<f16>(held[2u * j + 1u] * power.y);
        }
    }
    return power.x;
}

// The power of two that brings the largest magnitude of a block to 2^10 or above, so that sums of 32 products are
// numbers of f16, and its inverse; `most` are magnitudes of a thread. Values of f16 stay as they are.
fn power_of(which: u32, most: vec4<f32>, lane: u32) -> vec2<f32> {
    if !RANGED {
        return vec2<f32>(1.0);
    }
    let own = largest_across_lanes(max(max(most.x, most.y), max(most.z, most.w)));
    if lane % LANES == 0u {
        atomicMax(&largest_bits[which], bitcast<u32>(own));
    }
    workgroupBarrier();
    let exponent = clamp(atomicLoad(&largest_bits[which]) >> 23u, 11u, 254u);
    return vec2<f32>(bitcast<f32>((exponent - 10u) << 23u), bitcast<f32>((264u - exponent) << 23u));
}

// Scores of a thread's rows from `row` on, and of every eighth key from `key` on.
fn score(row: u32, key: u32) -> array<f32, SCORES> {
    var scores = array<f32, SCORES>();
    for (var step = 0u; step < K_EIGHTS; step += K_STEP) {
        var parts = array<vec2<f16>, SCORES>();
        for (var eight = step; eight < step + K_STEP; eight++) {
            let key_at = key * PITCH + eight * 2u;
            let query_at = row * PITCH + eight * 2u;
            var keys = array<vec4<f16>, 2u * SCORE_KEYS>();
            // @unroll
            for (var c = 0u; c < SCORE_KEYS; c++) {
                keys[2u * c] = tile[key_at + c * LANES * PITCH];
                keys[2u * c + 1u] = tile[key_at + c * LANES * PITCH + 1u];
            }
            // @unroll
            for (var r = 0u; r < SCORE_ROWS; r++) {
                // @unroll
                for (var h = 0u; h < 2u; h++) {
                    let four_h = query[query_at + r * PITCH + h];
                    // @unroll
                    for (var c = 0u; c < SCORE_KEYS; c++) {
                        parts[r * SCORE_KEYS + c] = fma(four_h.xy, keys[2u * c + h].xy, parts[r * SCORE_KEYS + c]);
                    }
                    // @unroll
                    for (var c = 0u; c < SCORE_KEYS; c++) {
                        parts[r * SCORE_KEYS + c] = fma(four_h.zw, keys[2u * c + h].zw, parts[r * SCORE_KEYS + c]);
                    }
                }
            }
        }
        // @unroll
        for (var r = 0u; r < SCORE_ROWS; r++) {
            // @unroll
            for (var c = 0u; c < SCORE_KEYS; c++) {
                let part_c = parts[r * SCORE_KEYS + c];
                scores[r * SCORE_KEYS + c] += f32(part_c.x + part_c.y);
            }
        }
    }
    return scores;
}

// Weights of a thread's scores, of which the first is of `position`, and what all sums of its rows shrink by.
fn weigh(
    state: ptr<function, Softmax>, scores: ptr<function, array<f32, SCORES>>, powers: array<f32, SCORE_ROWS>,
    key_power: f32, rows: vec2<u32>, kv_head: u32, row: u32, key: u32, position: u32,
) {
    var shrinks = array<f32, SCORE_ROWS>();
    // @unroll
    for (var r = 0u; r < SCORE_ROWS; r++) {
        let own_r = seen[row + r];
        let power_r = powers[r] * key_power;
        let query_r = min(rows.x + row + r, rows.y - 1u);
        var highest_r = (*state).largest[r];
        // @unroll
        for (var c = 0u; c < SCORE_KEYS; c++) {
            let position_c = position + c * LANES;
            var score_c = (*scores)[r * SCORE_KEYS + c] * power_r;
            if CAPPED {
                score_c = capped(score_c) * LOG2_E;
            }
            if ALIBI || BIASED {
                score_c = max(score_c + biased(0.0, query_r, kv_head, position_c) * LOG2_E, LEAST_SCORE);
            }
            // Positions before the first wrap around.
            let in_range_c = position_c - own_r.x < own_r.y - own_r.x;
            score_c = select(MISSING, score_c, in_range_c && is_shown(query_r, kv_head, position_c));
            highest_r = max(highest_r, score_c);
            (*scores)[r * SCORE_KEYS + c] = score_c;
        }
        highest_r = largest_across_lanes(highest_r);
        shrinks[r] = exp2((*state).largest[r] - highest_r);
        (*state).largest[r] = highest_r;
        (*state).total[r] *= shrinks[r];
        // @unroll
        for (var c = 0u; c < SCORE_KEYS; c++) {
            let weight_c = exp2((*scores)[r * SCORE_KEYS + c] - highest_r);
            (*scores)[r * SCORE_KEYS + c] = weight_c;
            (*state).total[r] += weight_c;
        }
    }
    // @unroll
    for (var c = 0u; c < SCORE_KEYS; c++) {
        let at_c = (key + c * LANES) * W_PITCH + row / 4u;
        if SCORE_ROWS == 4u {
            let of_c = vec4<f32>(
                (*scores)[c], (*scores)[SCORE_KEYS + c],
                (*scores)[(2u * SCORE_KEYS + c) % SCORES], (*scores)[(3u * SCORE_KEYS + c) % SCORES],
            );
            weights[at_c] = vec4<f16>(of_c);
        } else {
            // @unroll
            for (var r = 0u; r < SCORE_ROWS; r++) {
                weights[at_c][row % 4u + r] = f16((*scores)[r * SCORE_KEYS + c]);
            }
        }
    }
    if key == 0u {
        // @unroll
        for (var r = 0u; r < SCORE_ROWS; r++) {
            shrink[row + r] = shrinks[r];
        }
    }
}

// Add the weighted values of a block to the sums of a thread's rows and columns.
fn add_values(sums: ptr<function, array<vec4<f32>, SUMS>>, row_four: u32, column: u32, power: f32) {
    for (var begin = 0u; begin < KEYS; begin += SUMMED) {
        var made = array<vec2<f16>, 4u * PAIRS * V_FOURS>();
        for (var at = begin; at < begin + SUMMED; at += AT_ONCE) {
            let weight_at = at * W_PITCH + row_four;
            let value_at = at * PITCH + column;
            // @unroll
            for (var i = 0u; i < AT_ONCE; i++) {
                var pairs = array<vec2<f16>, PAIRS>();
                // @unroll
                for (var p = 0u; p < PAIRS; p++) {
                    let four_p = weights[weight_at + i * W_PITCH + p / 2u];
                    pairs[p] = select(four_p.xy, four_p.zw, p % 2u == 1u);
                }
                // @unroll
                for (var f = 0u; f < V_FOURS; f++) {
                    let v_f = tile[value_at + i * PITCH + f];
                    // @unroll
                    for (var p = 0u; p < PAIRS; p++) {
                        let at_p = 4u * (PAIRS * f + p);
                        made[at_p] = fma(pairs[p], v_f.xx, made[at_p]);
                        made[at_p + 1u] = fma(pairs[p], v_f.yy, made[at_p + 1u]);
                        made[at_p + 2u] = fma(pairs[p], v_f.zz, made[at_p + 2u]);
                        made[at_p + 3u] = fma(pairs[p], v_f.ww, made[at_p + 3u]);
                    }
                }
            }
        }
        // @unroll
        for (var f = 0u; f < V_FOURS; f++) {
            // @unroll
            for (var p = 0u; p < PAIRS; p++) {
                let x_p = vec2<f32>(made[4u * (PAIRS * f + p)]) * power;
                let y_p = vec2<f32>(made[4u * (PAIRS * f + p) + 1u]) * power;
                let z_p = vec2<f32>(made[4u * (PAIRS * f + p) + 2u]) * power;
                let w_p = vec2<f32>(made[4u * (PAIRS * f + p) + 3u]) * power;
                (*sums)[2u * p * V_FOURS + f] += vec4<f32>(x_p.x, y_p.x, z_p.x, w_p.x);
                (*sums)[(2u * p + 1u) * V_FOURS + f] += vec4<f32>(x_p.y, y_p.y, z_p.y, w_p.y);
            }
        }
    }
}
