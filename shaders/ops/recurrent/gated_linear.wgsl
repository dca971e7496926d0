// y = scale (S + bonus k vᵀ)ᵀ q, S = exp(decay) S + k vᵀ: gated linear attention; without a bonus
// y is scale Sᵀ q of the new S.
// @import formats/load/f32 as q
// @import formats/load/f32 as k
// @import formats/load/f32 as v
// @import formats/load/f32 as decay
// @import formats/load/f32 as bonus
// @import lib/recurrent/head_scan
// @import lib/recurrent/shared_decay

const BONUS: bool = false;

struct Params {
    groups: u32, column_tiles: u32, sequences: u32, tokens: u32, heads: u32, rows: u32, cols: u32,
    slots: u32, group: u32, scale: f32, state_offset: u32, runs_offset: u32,
    q_offset: u32, k_offset: u32, v_offset: u32, decay_offset: u32, bonus_offset: u32,
    q_strides: vec4<u32>, k_strides: vec4<u32>, v_strides: vec4<u32>, decay_strides: vec4<u32>,
    bonus_strides: vec4<u32>,
}

var<private> bonuses: array<vec4<f32>, VEC4S>;

fn fetch(vector: u32, token: u32, head: u32, row: u32) -> vec4<f32> {
    let rows = rows_at(row);
    let key_head = head / params.group;
    var values: vec4<f32>;
    if vector == 0u {
        let at = token * params.decay_strides.y + head * params.decay_strides.z;
        values = exp(decay_gather4(params.decay_offset + at + rows * params.decay_strides.w));
    } else if vector == 1u {
        let at = token * params.k_strides.y + key_head * params.k_strides.z;
        values = k_gather4(params.k_offset + at + rows * params.k_strides.w);
    } else {
        let at = token * params.q_strides.y + key_head * params.q_strides.z;
        values = params.scale * q_gather4(params.q_offset + at + rows * params.q_strides.w);
    }
    return there(row, values);
}

fn fetch_own(token: u32, head: u32, column: u32) -> vec2<f32> {
    let at = token * params.v_strides.y + head * params.v_strides.z + column * params.v_strides.w;
    return vec2<f32>(v_load(params.v_offset + at), 0.0);
}

fn begin(head: u32, column: u32, row: u32) {
    if BONUS {
        let at = params.bonus_offset + head * params.bonus_strides.z;
        // @unroll
        for (var i = 0u; i < VEC4S; i++) {
            bonuses[i] = bonus_gather4(at + rows_at(row + 4u * i) * params.bonus_strides.w);
        }
    }
}

fn advance(staged_at: u32, own: vec2<f32>, lane: u32) -> f32 {
    let mine = staged_at + lane / COLS * VEC4S;
    var sum = 0.0;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        let added_i = staged[mine + LENGTH + i] * own.x;
        let query_i = staged[mine + 2u * LENGTH + i];
        if BONUS {
            sum += dot(states[i] + bonuses[i] * added_i, query_i);
        }
        states[i] = states[i] * decay_at(staged_at, mine, i) + added_i;
        if !BONUS {
            sum += dot(states[i], query_i);
        }
    }
    return sum;
}
