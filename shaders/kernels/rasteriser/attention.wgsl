// Attention over a paged cache for devices whose lanes are a CPU's. A work group takes ROWS
// rows, a row being a query head of one token, that share a head of the cache, and every so many blocks of
// positions (a split).
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged
// @import lib/attention/no_prologue as prologue
// @import kernels/rasteriser/lib/lane_tile
// @import lib/q8/q8

const ROUNDED: bool = false;     // results leave in eight bits, as q8_activations gives them

@group(0) @binding(0) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> result: array<vec4<f32>, WG * LANE_VEC4S>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) column: u32) {
    let kv_head = group.x;
    let first = group.y * params.step;
    let last = min(first + params.step, params.rows);
    prologue_prepare(kv_head, first, last, column);
    let width = subgroupAdd(1u);
    let lane = subgroupExclusiveAdd(1u);
    var state = Tile();
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        state.largest[r] = LOWEST;
        if SINKS && group.z == 0u {
            state.largest[r] = sink_of(min(first + r, last - 1u), kv_head);
            state.total[r] = select(0.0, 1.0, lane == 0u);
        }
    }
    let queries = vec2<u32>(
        query_of(min(first + lane, last - 1u), kv_head),
        query_of(min(first + lane + width, last - 1u), kv_head),
    );
    let tile = width * POSITIONS;
    let end_token = (last + params.group - 1u) / params.group;
    var run = first / params.group;
    while run < end_token {
        let tokens = run_from(run, end_token);
        let end = tokens.seen.y;
        let seen_low = seen_in(tokens, first + lane, last);
        let seen_high = seen_in(tokens, first + lane + width, last);
        let begin = first_in_turn(tokens.seen.x, group.z, tile);
        for (var start = begin; start < end; start += params.splits * tile) {
            // Surplus positions repeat the last one, unseen.
            var keys = array<u32, POSITIONS>();
            var values = array<u32, POSITIONS>();
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                let at_p = min(start + p * width + lane, end - 1u);
                let slot_p = cache_row(tokens.sequence, at_p) * params.kv_heads + kv_head;
                keys[p] = slot_p * params.k_vec4s;
                values[p] = value_at(slot_p);
            }
            var scores = products(keys, queries, lane, width);
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let from_r = of_row(r, width, seen_low.x, seen_high.x);
                let until_r = of_row(r, width, seen_low.y, seen_high.y);
                let row_r = min(first + r, last - 1u);
                // @unroll
                for (var p = 0u; p < POSITIONS; p++) {
                    let at_rp = start + p * width + lane;
                    let capped_rp = capped(scores[r * POSITIONS + p] * query_factor(row_r));
                    let score_rp = biased(capped_rp, row_r, kv_head, at_rp);
                    scores[r * POSITIONS + p] =
                        select(LOWEST, score_rp, at_rp >= from_r && at_rp < until_r);
                }
            }
            add_values(&state, &scores, values, column, width);
        }
        run = tokens.end;
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if first + r < last {
            let whole_r = sum_of_lanes(state.total[r], width);
            let at_r = place_of(first + r, kv_head, group.z);
            // @unroll
            for (var n = 0u; n < LANE_VEC4S; n++) {
                let value_rn = state.sums[r][n] * scale_of(whole_r);
                if ROUNDED {
                    result[n * WG + column] = value_rn;
                } else if n * WG + column < params.v_vec4s {
                    y[at_r + n * WG + column] = bitcast<vec4<u32>>(value_rn);
                }
            }
            if ROUNDED {
                put_rounded(at_r / 8u, column);
            } else if params.splits > 1u && column == 0u {
                let tail_r = vec4<f32>(state.largest[r], whole_r, 0.0, 0.0);
                y[at_r + params.v_vec4s] = bitcast<vec4<u32>>(tail_r);
            }
        }
    }
}

// Stores a row of which each lane has brought its part, a group of 32 values a lane.
fn put_rounded(first_group: u32, column: u32) {
    workgroupBarrier();
    for (var g = column; g < params.v_vec4s / 8u; g += WG) {
        var values = array<vec4<f32>, 8>();
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
