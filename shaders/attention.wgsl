// Causal attention over a paged cache. A work group takes one query head and one range of positions
// (a split): WG positions at a time, each lane scores one, then each lane sums its share of the
// values. Softmax is online: a running maximum, and sums rescaled when it moves.
//
// Position j of sequence s lies in row table[s, j / block] · block + j mod block of the cache.
// @import load/f32 as q
// @import vec4/f32 as k
// @import vec4/f32 as v

const WG: u32 = 64u;
const SPLIT: bool = false;       // write partial results for attention_merge
const LANE_QUADS: u32 = 1u;      // vec4 of the result that one lane owns
const Q_SIZE: u32 = 64u;         // values in a query head
const LOWEST: f32 = -3.4028234e38;

struct Params {
    heads: u32, kv_heads: u32, k_quads: u32, v_quads: u32, block: u32, table_width: u32, splits: u32,
    q_offset: u32, positions_offset: u32, sequences_offset: u32, table_offset: u32, window: u32,
    q_token_stride: u32, q_head_stride: u32, table_rows: u32, k_rows: u32, scale: f32, softcap: f32,
}

@group(0) @binding(0) var<storage, read> positions: array<i32>;
@group(0) @binding(1) var<storage, read> sequences: array<i32>;
@group(0) @binding(2) var<storage, read> table: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> params: Params;

var<workgroup> query: array<f32, Q_SIZE>;
var<workgroup> weights: array<f32, WG>;
var<workgroup> rows: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x;
    let token = group.y;
    let kv_head = head / (params.heads / params.kv_heads);
    let source = params.q_offset + token * params.q_token_stride + head * params.q_head_stride;
    for (var i = lane; i < Q_SIZE; i += WG) {
        query[i] = q_load(source + i) * params.scale;
    }
    workgroupBarrier();
    let range = positions_of(token, group.z);
    let sequence = min(u32(max(sequences[params.sequences_offset + token], 0)), params.table_rows - 1u);
    var largest = LOWEST;
    var total = 0.0;
    var sums: array<vec4<f32>, LANE_QUADS>;
    for (var start = range.x; start < range.y; start += WG) {
        let count = min(WG, range.y - start);
        var score = LOWEST;
        if lane < count {
            let row = cache_row(sequence, start + lane) * params.kv_heads + kv_head;
            rows[lane] = row;
            score = capped(dot_key(row));
        }
        weights[lane] = score;
        workgroupBarrier();
        var highest = largest;
        for (var i = 0u; i < count; i++) {
            highest = max(highest, weights[i]);
        }
        let shrink = exp(largest - highest);
        workgroupBarrier();
        weights[lane] = select(0.0, exp(score - highest), lane < count);
        workgroupBarrier();
        total *= shrink;
        for (var q = 0u; q < LANE_QUADS; q++) {
            sums[q] *= shrink;
        }
        for (var i = 0u; i < count; i++) {
            total += weights[i];
            add_value(rows[i], weights[i], lane, &sums);
        }
        largest = highest;
        workgroupBarrier();
    }
    store(token * params.heads + head, group.z, lane, largest, total, &sums);
}

// Positions of the cache that this group sees, first and one past the last.
fn positions_of(token: u32, split: u32) -> vec2<u32> {
    // Positions beyond the table, like blocks beyond the cache, are a caller's mistake that reads
    // something wrong but nothing outside.
    let wanted = u32(max(positions[params.positions_offset + token] + 1, 0));
    let end = min(wanted, params.table_width * params.block);
    let start = select(0u, end - params.window, params.window > 0u && end > params.window);
    if !SPLIT {
        return vec2<u32>(start, end);
    }
    let share = (end - start + params.splits - 1u) / params.splits;
    let first = min(start + split * share, end);
    return vec2<u32>(first, min(first + share, end));
}

fn cache_row(sequence: u32, position: u32) -> u32 {
    let at = params.table_offset + sequence * params.table_width + position / params.block;
    return min(u32(table[at]) * params.block + position % params.block, params.k_rows - 1u);
}

fn dot_key(row: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < params.k_quads; i++) {
        let part = vec4<f32>(query[4u * i], query[4u * i + 1u], query[4u * i + 2u], query[4u * i + 3u]);
        sum += part * k_load4(row * params.k_quads + i);
    }
    return sum.x + sum.y + sum.z + sum.w;
}

// The clamp changes no value, but some drivers' tanh overflows to NaN beyond 44.
fn capped(score: f32) -> f32 {
    let bent = tanh(clamp(score / max(params.softcap, 1e-9), -20.0, 20.0));
    return select(score, params.softcap * bent, params.softcap > 0.0);
}

fn add_value(row: u32, weight: f32, lane: u32, sums: ptr<function, array<vec4<f32>, LANE_QUADS>>) {
    for (var q = 0u; q < LANE_QUADS; q++) {
        let quad = q * WG + lane;
        if quad < params.v_quads {
            (*sums)[q] += weight * v_load4(row * params.v_quads + quad);
        }
    }
}

// A split writes its sums and then (largest, total); a whole row is divided by its total.
fn store(
    row: u32, split: u32, lane: u32, largest: f32, total: f32,
    sums: ptr<function, array<vec4<f32>, LANE_QUADS>>,
) {
    let factor = select(1.0 / max(total, 1e-37), 1.0, SPLIT);
    let width = select(params.v_quads, params.v_quads + 1u, SPLIT);
    let at = (row * params.splits + split) * width;
    for (var q = 0u; q < LANE_QUADS; q++) {
        let quad = q * WG + lane;
        if quad < params.v_quads {
            y[at + quad] = (*sums)[q] * factor;
        }
    }
    if SPLIT && lane == 0u {
        y[at + params.v_quads] = vec4<f32>(largest, total, 0.0, 0.0);
    }
}
