// Attention over a paged cache. A work group takes ROWS rows, a row being a query head of one
// token, that share a head of the cache, and every so many blocks of positions (a split). Keys come through
// workgroup memory KEYS at a time and CHUNK vectors of each, then the values of the same positions.
// Softmax is online: a running maximum, and sums rescaled when it moves. Loops have as many iterations for
// all threads, without which D3D12's compiler refuses the barriers behind them.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged
// @import lib/attention/no_prologue as prologue

const WG: u32 = 64u;
const ROWS: u32 = 16u;           // a multiple of 4
const QUARTER_ROWS: u32 = 4u;
const CHUNKS: u32 = 1u;          // of a value

const KEYS: u32 = 32u;           // two of a thread for each vector of a chunk
const CHUNK: u32 = 16u;          // vectors of four: WG / CHUNK is the step of a thread's rows
const PITCH: u32 = 17u;          // of keys in memory, odd so that neighbours lie in other banks
const WEIGHTS: u32 = 33u;        // likewise of rows

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> query: array<vec4<f32>, ROWS * CHUNK>;
var<workgroup> tile: array<vec4<f32>, KEYS * PITCH>;
var<workgroup> weights: array<f32, ROWS * WEIGHTS>;
var<workgroup> slots: array<u32, KEYS>;
var<workgroup> queries: array<u32, ROWS>;        // where the query of each row begins
var<workgroup> seen: array<vec2<u32>, ROWS>;     // positions that each row sees in this run
var<workgroup> largest: array<f32, ROWS>;
var<workgroup> shrink: array<f32, ROWS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let first = group.y * params.step;
    let last = min(first + params.step, params.rows);
    prologue_prepare(kv_head, first, last, lane);
    if lane < ROWS {
        largest[lane] = LOWEST;
        if SINKS && group.z == 0u {
            largest[lane] = sink_of(min(first + lane, last - 1u), kv_head);
        }
        queries[lane] = query_of(min(first + lane, last - 1u), kv_head);
    }
    let column = lane % CHUNK;
    let row = lane / CHUNK;
    var total = array<f32, QUARTER_ROWS>();
    if SINKS && group.z == 0u {
        // @unroll
        for (var j = 0u; j < QUARTER_ROWS; j++) {
            total[j] = 1.0;
        }
    }
    var sums = array<vec4<f32>, CHUNKS * QUARTER_ROWS>();
    var loaded = false;
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
            let count = min(KEYS, end - start);
            if lane < KEYS {
                let at = start + min(lane, count - 1u);
                slots[lane] = cache_row(tokens.sequence, at) * params.kv_heads + kv_head;
            }
            workgroupBarrier();
            score(start, first, last, kv_head, lane, loaded);
            loaded = true;
            workgroupBarrier();
            if lane < ROWS {
                var highest = largest[lane];
                for (var i = 0u; i < KEYS; i++) {
                    highest = max(highest, weights[lane * WEIGHTS + i]);
                }
                shrink[lane] = exp(largest[lane] - highest);
                largest[lane] = highest;
            }
            workgroupBarrier();
            for (var begin = 0u; begin < ROWS * KEYS; begin += WG) {
                let i = begin + lane;
                let at = (i / KEYS) * WEIGHTS + i % KEYS;
                let score = weights[at];
                weights[at] = select(exp(score - largest[i / KEYS]), 0.0, score == LOWEST);
            }
            // @unroll
            for (var j = 0u; j < QUARTER_ROWS; j++) {
                let shrink_j = shrink[row + 4u * j];
                total[j] *= shrink_j;
                // @unroll
                for (var c = 0u; c < CHUNKS; c++) {
                    sums[c * QUARTER_ROWS + j] *= shrink_j;
                }
            }
            // @unroll
            for (var c = 0u; c < CHUNKS; c++) {
                for (var begin = 0u; begin < KEYS * CHUNK; begin += WG) {
                    let i = begin + lane;
                    let vec4_c = min(c * CHUNK + i % CHUNK, params.v_vec4s - 1u);
                    tile[(i / CHUNK) * PITCH + i % CHUNK] =
                        v_load4(value_at(slots[i / CHUNK]) + vec4_c);
                }
                workgroupBarrier();
                // Positions beyond the last repeat it, and weigh nothing.
                for (var four = 0u; four < count; four += 4u) {
                    // @unroll
                    for (var i = 0u; i < 4u; i++) {
                        let value_i = tile[(four + i) * PITCH + column];
                        // @unroll
                        for (var j = 0u; j < QUARTER_ROWS; j++) {
                            let weight_ij = weights[(row + 4u * j) * WEIGHTS + four + i];
                            sums[c * QUARTER_ROWS + j] += weight_ij * value_i;
                            if c == 0u {
                                total[j] += weight_ij;
                            }
                        }
                    }
                }
                workgroupBarrier();
            }
        }
        run = tokens.end;
        workgroupBarrier();
    }
    // @unroll
    for (var j = 0u; j < QUARTER_ROWS; j++) {
        let row_j = row + 4u * j;
        if first + row_j < last {
            let at_j = place_of(first + row_j, kv_head, group.z);
            // @unroll
            for (var c = 0u; c < CHUNKS; c++) {
                if c * CHUNK + column < params.v_vec4s {
                    y[at_j + c * CHUNK + column] = sums[c * QUARTER_ROWS + j] * scale_of(total[j]);
                }
            }
            if params.splits > 1u && column == 0u {
                y[at_j + params.v_vec4s] = vec4<f32>(largest[row_j], total[j], 0.0, 0.0);
            }
        }
    }
}

// Scores of all rows at KEYS positions, into `weights`: a thread has two positions and every fourth
// row. Queries of one chunk stay in memory once they are `loaded`.
fn score(start: u32, first: u32, last: u32, kv_head: u32, lane: u32, loaded: bool) {
    let key = lane % CHUNK;
    let row = lane / CHUNK;
    var sums = array<f32, 2u * QUARTER_ROWS>();
    for (var chunk = 0u; chunk < params.k_vec4s; chunk += CHUNK) {
        if !loaded || params.k_vec4s > CHUNK {
            for (var begin = 0u; begin < ROWS * CHUNK; begin += WG) {
                let i = begin + lane;
                let vec4_index = chunk + i % CHUNK;
                query[i] = vec4<f32>(0.0);
                if vec4_index < params.k_vec4s {
                    let factor = query_factor(min(first + i / CHUNK, last - 1u));
                    query[i] = q_load4(queries[i / CHUNK] + 4u * vec4_index) * factor;
                }
            }
        }
        for (var begin = 0u; begin < KEYS * CHUNK; begin += WG) {
            let i = begin + lane;
            let vec4_index = chunk + i % CHUNK;
            var value = vec4<f32>(0.0);
            if vec4_index < params.k_vec4s {
                value = k_load4(slots[i / CHUNK] * params.k_vec4s + vec4_index);
            }
            tile[(i / CHUNK) * PITCH + i % CHUNK] = value;
        }
        workgroupBarrier();
        for (var four = 0u; four < CHUNK; four += 4u) {
            // @unroll
            for (var d = 0u; d < 4u; d++) {
                let first_d = tile[key * PITCH + four + d];
                let second_d = tile[(key + CHUNK) * PITCH + four + d];
                // @unroll
                for (var j = 0u; j < QUARTER_ROWS; j++) {
                    let query_j = query[(row + 4u * j) * CHUNK + four + d];
                    sums[2u * j] += dot(query_j, first_d);
                    sums[2u * j + 1u] += dot(query_j, second_d);
                }
            }
        }
        workgroupBarrier();
    }
    // @unroll
    for (var j = 0u; j < QUARTER_ROWS; j++) {
        let row_j = row + 4u * j;
        let own_j = seen[row_j];
        // @unroll
        for (var h = 0u; h < 2u; h++) {
            let key_h = key + h * CHUNK;
            let seen_h = start + key_h >= own_j.x && start + key_h < own_j.y;
            let score_h = biased(capped(sums[2u * j + h]), min(first + row_j, last - 1u), kv_head, start + key_h);
            weights[row_j * WEIGHTS + key_h] = select(LOWEST, score_h, seen_h);
        }
    }
}
