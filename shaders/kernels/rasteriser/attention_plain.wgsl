// Attention over a paged cache for rasterisers without subgroups. A work group takes one row,
// which is a query head of one token, and one range of positions (a split): WG positions at a time,
// each lane scores one, then each lane sums its share of the values. Softmax is online: a running
// maximum, and sums rescaled when it moves.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/i32 as positions
// @import formats/load/i32 as sequences
// @import lib/attention/paged

const WG: u32 = 8u;
const LANE_VEC4S: u32 = 1u;      // vec4 of the result that one lane owns
const Q_SIZE: u32 = 64u;         // values in a query head

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> query: array<f32, Q_SIZE>;
var<workgroup> weights: array<f32, WG>;
var<workgroup> slots: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let kv_head = group.x;
    let row = group.y * params.step;
    let token = row / params.group;
    let sequence = sequence_of(token);
    let range = part_of(seen_by(token), group.z);
    let source = query_of(row, kv_head);
    for (var i = lane; i < Q_SIZE; i += WG) {
        query[i] = q_load(source + i) * query_factor(row);
    }
    workgroupBarrier();
    var largest = LOWEST;
    var total = 0.0;
    if SINKS && group.z == 0u {
        largest = sink_of(row, kv_head);
        total = 1.0;
    }
    var sums: array<vec4<f32>, LANE_VEC4S>;
    for (var start = range.x; start < range.y; start += WG) {
        let count = min(WG, range.y - start);
        var score = LOWEST;
        if lane < count {
            let slot = cache_row(sequence, start + lane) * params.kv_heads + kv_head;
            slots[lane] = slot;
            score = biased(capped(dot_key(slot)), row, kv_head, start + lane);
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
        for (var n = 0u; n < LANE_VEC4S; n++) {
            sums[n] *= shrink;
        }
        for (var i = 0u; i < count; i++) {
            total += weights[i];
            for (var n = 0u; n < LANE_VEC4S; n++) {
                let vec4_index = min(n * WG + lane, params.v_vec4s - 1u);
                sums[n] += weights[i] * v_load4(value_at(slots[i]) + vec4_index);
            }
        }
        largest = highest;
        workgroupBarrier();
    }
    let at = place_of(row, kv_head, group.z);
    for (var n = 0u; n < LANE_VEC4S; n++) {
        if n * WG + lane < params.v_vec4s {
            y[at + n * WG + lane] = sums[n] * scale_of(total);
        }
    }
    if params.splits > 1u && lane == 0u {
        y[at + params.v_vec4s] = vec4<f32>(largest, total, 0.0, 0.0);
    }
}

fn dot_key(slot: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    for (var i = 0u; i < params.k_vec4s; i++) {
        let part = vec4<f32>(query[4u * i], query[4u * i + 1u], query[4u * i + 2u], query[4u * i + 3u]);
        sum += part * k_load4(slot * params.k_vec4s + i);
    }
    return sum.x + sum.y + sum.z + sum.w;
}
