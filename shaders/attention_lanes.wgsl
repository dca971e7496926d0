// Causal attention over a paged cache for devices whose lanes are a CPU's: there, a load costs as
// much as a dozen multiplications, whether lanes share its index or not, and long code takes seconds
// to compile. A work group takes ROWS rows, a row being a query head of one token, that share a
// head of the cache, and one range of positions (a split). For scores each lane has POSITIONS
// positions, for values a few columns, so each key, value and query that is loaded serves a tile of
// sums in registers.
// @import load/f32 as q
// @import vec4/f32 as k
// @import vec4/f32 as v
// @import load/i32 as positions
// @import load/i32 as sequences
// @import lib/paged
// @import lib/q8

const WG: u32 = 8u;
const ROWS: u32 = 8u;
const POSITIONS: u32 = 4u;
const LANE_QUADS: u32 = 2u;      // vec4 of each result that one lane owns
const ROUNDED: bool = false;     // results leave in eight bits, as q8_activations gives them

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> result: array<vec4<f32>, WG * LANE_QUADS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) column: u32) {
    let kv_head = group.x;
    let first = group.y * params.step;
    let last = min(first + params.step, params.rows);
    // Where a subgroup is smaller than the work group, each does the work of all lanes by itself.
    let width = subgroupAdd(1u);
    let lane = subgroupExclusiveAdd(1u);
    var largest: array<f32, ROWS>;
    var total: array<f32, ROWS>;
    var sums: array<array<vec4<f32>, LANE_QUADS>, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        largest[r] = LOWEST;
    }
    let queries = vec2<u32>(
        query_of(min(first + lane, last - 1u), kv_head),
        query_of(min(first + lane + width, last - 1u), kv_head),
    );
    let tile = width * POSITIONS;
    let end_token = (last - 1u) / params.group + 1u;
    var run = first / params.group;
    while run < end_token {
        let tokens = run_from(run, end_token);
        let range = part_of(tokens.seen, group.z);
        let seen_low = seen_in(tokens, first + lane, last, range.y);
        let seen_high = seen_in(tokens, first + lane + width, last, range.y);
        for (var start = range.x; start < range.y; start += tile) {
            // Surplus positions repeat the last one, unseen.
            var slots: array<u32, POSITIONS>;
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                let at_p = min(start + p * width + lane, range.y - 1u);
                slots[p] = cache_row(tokens.sequence, at_p) * params.kv_heads + kv_head;
            }
            var scores = products(slots, queries, lane, width);
            var highest: array<f32, ROWS>;
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let from_r = of_row(r, width, seen_low.x, seen_high.x);
                let until_r = of_row(r, width, seen_low.y, seen_high.y);
                highest[r] = LOWEST;
                // @unroll
                for (var p = 0u; p < POSITIONS; p++) {
                    let at_rp = start + p * width + lane;
                    let score_rp = capped(scores[r * POSITIONS + p] * params.scale);
                    scores[r * POSITIONS + p] =
                        select(LOWEST, score_rp, at_rp >= from_r && at_rp < until_r);
                    highest[r] = max(highest[r], scores[r * POSITIONS + p]);
                }
            }
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                var most_r = largest[r];
                for (var i = 0u; i < width; i++) {
                    most_r = max(most_r, subgroupShuffle(highest[r], i));
                }
                highest[r] = most_r;
            }
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let shrink_r = exp(largest[r] - highest[r]);
                largest[r] = highest[r];
                total[r] *= shrink_r;
                // @unroll
                for (var n = 0u; n < LANE_QUADS; n++) {
                    sums[r][n] *= shrink_r;
                }
                // @unroll
                for (var p = 0u; p < POSITIONS; p++) {
                    let score_rp = scores[r * POSITIONS + p];
                    let weight_rp = select(exp(score_rp - highest[r]), 0.0, score_rp == LOWEST);
                    scores[r * POSITIONS + p] = weight_rp;
                    total[r] += weight_rp;
                }
            }
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                for (var i = 0u; i < width; i++) {
                    let slot_p = subgroupShuffle(slots[p], i);
                    // @unroll
                    for (var n = 0u; n < LANE_QUADS; n++) {
                        let quad_n = min(n * WG + column, params.v_quads - 1u);
                        let value_pn = v_load4(slot_p * params.v_quads + quad_n);
                        // @unroll
                        for (var r = 0u; r < ROWS; r++) {
                            let weight_rp = subgroupShuffle(scores[r * POSITIONS + p], i);
                            sums[r][n] += weight_rp * value_pn;
                        }
                    }
                }
            }
        }
        run = tokens.end;
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if first + r < last {
            var whole_r = 0.0;
            for (var i = 0u; i < width; i++) {
                whole_r += subgroupShuffle(total[r], i);
            }
            let at_r = place_of(first + r, kv_head, group.z);
            // @unroll
            for (var n = 0u; n < LANE_QUADS; n++) {
                let value_rn = sums[r][n] * scale_of(whole_r);
                if ROUNDED {
                    result[n * WG + column] = value_rn;
                } else if n * WG + column < params.v_quads {
                    y[at_r + n * WG + column] = bitcast<vec4<u32>>(value_rn);
                }
            }
            if ROUNDED {
                put_rounded(at_r / 8u, column);
            } else if params.splits > 1u && column == 0u {
                let state_r = vec4<f32>(largest[r], whole_r, 0.0, 0.0);
                y[at_r + params.v_quads] = bitcast<vec4<u32>>(state_r);
            }
        }
    }
}

// Stores a row of which each lane has brought its part, a group of 32 values a lane.
fn put_rounded(first_group: u32, column: u32) {
    workgroupBarrier();
    for (var g = column; g < params.v_quads / 8u; g += WG) {
        var values: array<vec4<f32>, 8>;
        // @unroll
        for (var k = 0u; k < 8u; k++) {
            values[k] = result[g * 8u + k];
        }
        let packed = q8_group(&values);
        let at = (first_group + g) * 3u;
        y[at] = packed[0];
        y[at + 1u] = packed[1];
        y[at + 2u] = packed[2];
    }
    workgroupBarrier();
}

// Query times key for each row and each of a lane's positions; surplus rows repeat the last one.
fn products(slots: array<u32, POSITIONS>, queries: vec2<u32>, lane: u32, width: u32) -> array<f32, ROWS * POSITIONS> {
    var sums = array<f32, ROWS * POSITIONS>();
    for (var first = 0u; first < params.k_quads; first += width) {
        let count = min(width, params.k_quads - first);
        var parts: array<vec4<f32>, ROWS>;
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let query_r = of_row(r, width, queries.x, queries.y);
            parts[r] = q_load4(query_r + 4u * (first + min(lane, count - 1u)));
        }
        for (var i = 0u; i < count; i++) {
            var keys: array<vec4<f32>, POSITIONS>;
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                keys[p] = k_load4(slots[p] * params.k_quads + first + i);
            }
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let query_r = subgroupShuffle(parts[r], i);
                // @unroll
                for (var p = 0u; p < POSITIONS; p++) {
                    sums[r * POSITIONS + p] += dot(query_r, keys[p]);
                }
            }
        }
    }
    return sums;
}

// What a row's lane holds of it: lane r of row r, or lane r - width where lanes are half as many.
fn of_row(row: u32, width: u32, low: u32, high: u32) -> u32 {
    if row < 4u {
        return subgroupShuffle(low, row);
    }
    return select(subgroupShuffle(high, row - 4u), subgroupShuffle(low, row), width > row);
}
