// S = exp(decay) S + b (Sᵀ a)ᵀ + k vᵀ, y = Sᵀ r: the generalised delta rule. `delta` has a and b.
// @import formats/load/f32 as r
// @import formats/load/f32 as k
// @import formats/load/f32 as v
// @import formats/load/f32 as decay
// @import formats/load/f32 as delta
// @import lib/recurrent/head_scan
// @import lib/recurrent/shared_decay

struct Params {
    groups: u32, column_tiles: u32, sequences: u32, tokens: u32, heads: u32, rows: u32, cols: u32,
    slots: u32, state_offset: u32, runs_offset: u32,
    r_offset: u32, k_offset: u32, v_offset: u32, decay_offset: u32, delta_offset: u32,
    r_strides: vec4<u32>, k_strides: vec4<u32>, v_strides: vec4<u32>, decay_strides: vec4<u32>,
    delta_strides: vec4<u32>,
}

fn fetch(vector: u32, token: u32, head: u32, row: u32) -> vec4<f32> {
    let rows = rows_at(row);
    var values: vec4<f32>;
    if vector == 0u {
        let at = token * params.decay_strides.y + head * params.decay_strides.z;
        values = exp(decay_gather4(params.decay_offset + at + rows * params.decay_strides.w));
    } else if vector == 1u {
        let at = token * params.k_strides.y + head * params.k_strides.z;
        values = k_gather4(params.k_offset + at + rows * params.k_strides.w);
    } else if vector == 2u {
        let at = token * params.r_strides.y + head * params.r_strides.z;
        values = r_gather4(params.r_offset + at + rows * params.r_strides.w);
    } else {
        let at = (vector - 3u) * params.delta_strides.x + token * params.delta_strides.y
            + head * params.delta_strides.z;
        values = delta_gather4(params.delta_offset + at + rows * params.delta_strides.w);
    }
    return there(row, values);
}

fn fetch_own(token: u32, head: u32, column: u32) -> vec2<f32> {
    let at = token * params.v_strides.y + head * params.v_strides.z + column * params.v_strides.w;
    return vec2<f32>(v_load(params.v_offset + at), 0.0);
}

fn begin(head: u32, column: u32, row: u32) {
}

fn advance(staged_at: u32, own: vec2<f32>, lane: u32) -> f32 {
    let mine = staged_at + lane / COLS * VEC4S;
    var known = 0.0;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        known += dot(states[i], staged[mine + 3u * LENGTH + i]);
    }
    let whole = column_sum(known, 2u, lane);
    var sum = 0.0;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        states[i] = states[i] * decay_at(staged_at, mine, i)
            + staged[mine + 4u * LENGTH + i] * whole + staged[mine + LENGTH + i] * own.x;
        sum += dot(states[i], staged[mine + 2u * LENGTH + i]);
    }
    return sum;
}
