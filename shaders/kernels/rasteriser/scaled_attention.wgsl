// As scaled_attention.wgsl, for devices whose lanes are a CPU's. A work group takes ROWS rows, a row
// being a query head of one token, that share a head of keys, and one range of keys (a split). Keys
// and values begin at whole vectors of four.
// @import formats/load/f32 as q
// @import formats/vec4/f32 as k
// @import formats/vec4/f32 as v
// @import formats/load/f32 as mask
// @import formats/load/f32 as sinks
// @import kernels/rasteriser/lib/lane_tile
// @import lib/attention/plain_keys

const LOWEST: f32 = -3.4028234e38;
const FLOOR: f32 = -3.4e38;      // lowest score of what is seen

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) column: u32) {
    let kv_head = group.x;
    let first = (params.first_group_y + group.y) * params.step;
    let last = min(first + params.step, params.rows);
    if first >= last {
        return;
    }
    let batch = group.z / params.splits;
    let split = group.z % params.splits;
    let width = subgroupAdd(1u);
    let lane = subgroupExclusiveAdd(1u);
    var state = Tile();
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        state.largest[r] = LOWEST;
        if SINKS && split == 0u {
            let sink_r = params.sinks_offset + head_of(min(first + r, last - 1u), kv_head);
            state.largest[r] = max(f32(sinks_load(sink_r)), LOWEST);
            state.total[r] = select(0.0, 1.0, lane == 0u);
        }
    }
    let queries = vec2<u32>(
        query_of(min(first + lane, last - 1u), kv_head, batch),
        query_of(min(first + lane + width, last - 1u), kv_head, batch),
    );
    let k_at = params.k_offset + batch * params.k_strides.x + kv_head * params.k_strides.z;
    let v_at = params.v_offset + batch * params.v_strides.x + kv_head * params.v_strides.z;
    let stride = width * POSITIONS;
    let range = range_of(first / params.group, (last - 1u) / params.group, split, stride);
    for (var start = range.x; start < range.y; start += stride) {
        var keys = array<u32, POSITIONS>();
        var values = array<u32, POSITIONS>();
        // @unroll
        for (var p = 0u; p < POSITIONS; p++) {
            // Surplus keys repeat the last one, unseen.
            let key_p = min(start + p * width + lane, range.y - 1u);
            keys[p] = (k_at + key_p * params.k_strides.y) / 4u;
            values[p] = (v_at + key_p * params.v_strides.y) / 4u;
        }
        var scores = products(keys, queries, lane, width);
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let row_r = min(first + r, last - 1u);
            let token_r = row_r / params.group;
            let from_r = seen_from(token_r);
            let until_r = min(seen_until(token_r), range.y);
            let mask_r = mask_of(batch, head_of(row_r, kv_head), token_r);
            // @unroll
            for (var p = 0u; p < POSITIONS; p++) {
                let key_rp = start + p * width + lane;
                var seen_rp = key_rp >= from_r && key_rp < until_r;
                var score_rp = capped(scores[r * POSITIONS + p] * params.scale);
                if MASKED {
                    let at_rp = mask_r + min(key_rp, range.y - 1u) * params.mask_strides.w;
                    let value_rp = f32(mask_load(at_rp));
                    seen_rp = seen_rp && shows(value_rp);
                    score_rp = masked(score_rp, value_rp);
                }
                // Not by `max`, which may lose a NaN.
                score_rp = select(score_rp, FLOOR, score_rp < FLOOR);
                scores[r * POSITIONS + p] = select(LOWEST, score_rp, seen_rp);
            }
        }
        add_values(&state, &scores, values, column, width);
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        if first + r < last {
            let total_r = sum_of_lanes(state.total[r], width);
            let token_r = (first + r) / params.group;
            let place_r = place_of(batch, token_r, head_of(first + r, kv_head), split) / 4u;
            let factor_r = factor_of(total_r);
            // @unroll
            for (var n = 0u; n < LANE_VEC4S; n++) {
                if n * WG + column < params.v_vec4s {
                    y[place_r + n * WG + column] = state.sums[r][n] * factor_r;
                }
            }
            if params.splits > 1u && column == 0u {
                y[place_r + params.v_vec4s] = vec4<f32>(state.largest[r], total_r, 0.0, 0.0);
            }
        }
    }
}

fn head_of(row: u32, kv_head: u32) -> u32 {
    return kv_head * params.group + row % params.group;
}

fn query_of(row: u32, kv_head: u32, batch: u32) -> u32 {
    let token = row / params.group;
    let at = vec3<u32>(batch, token, head_of(row, kv_head)) * params.q_strides.xyz;
    return params.q_offset + at.x + at.y + at.z;
}
