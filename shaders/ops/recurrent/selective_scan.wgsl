// S = exp(dt a) S + b (dt x)ᵀ, y = Sᵀ c, where dt = softplus(dt): the scan of a state space model.
// Heads have one `a` and one `dt`, or (OWN_DECAY) each column has a `dt` and an `a` for each state.
// @import formats/load/f32 as x
// @import formats/load/f32 as dt
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import formats/load/f32 as c
// @import lib/recurrent/head_scan
// @import lib/numeric/softplus

const OWN_DECAY: bool = false;

struct Params {
    groups: u32, column_tiles: u32, sequences: u32, tokens: u32, heads: u32, rows: u32, cols: u32,
    slots: u32, group: u32, state_offset: u32, runs_offset: u32,
    x_offset: u32, dt_offset: u32, a_offset: u32, b_offset: u32, c_offset: u32,
    x_strides: vec4<u32>, dt_strides: vec4<u32>, a_strides: vec4<u32>, b_strides: vec4<u32>,
    c_strides: vec4<u32>,
}

var<private> rates: array<vec4<f32>, VEC4S>;

fn fetch(vector: u32, token: u32, head: u32, row: u32) -> vec4<f32> {
    let rows = rows_at(row);
    let part = head / params.group;
    var values: vec4<f32>;
    if vector == 0u {
        let at = token * params.b_strides.y + part * params.b_strides.z;
        values = b_gather4(params.b_offset + at + rows * params.b_strides.w);
    } else {
        let at = token * params.c_strides.y + part * params.c_strides.z;
        values = c_gather4(params.c_offset + at + rows * params.c_strides.w);
    }
    return there(row, values);
}

fn fetch_own(token: u32, head: u32, column: u32) -> vec2<f32> {
    let at = token * params.x_strides.y + head * params.x_strides.z + column * params.x_strides.w;
    let dt_at = token * params.dt_strides.y + head * params.dt_strides.z
        + column * params.dt_strides.w;
    let step = softplus(dt_load(params.dt_offset + dt_at));
    return vec2<f32>(x_load(params.x_offset + at) * step, step);
}

fn begin(head: u32, column: u32, row: u32) {
    let at = params.a_offset + head * params.a_strides.y + column * params.a_strides.z;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        rates[i] = a_gather4(at + rows_at(row + 4u * i) * params.a_strides.w);
    }
}

fn advance(staged_at: u32, own: vec2<f32>, lane: u32) -> f32 {
    let mine = staged_at + lane / COLS * VEC4S;
    let shared_decay = vec4<f32>(exp(own.y * rates[0].x));
    var sum = 0.0;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        var decay_i = shared_decay;
        if OWN_DECAY {
            decay_i = exp(own.y * rates[i]);
        }
        states[i] = states[i] * decay_i + staged[mine + i] * own.x;
        sum += dot(states[i], staged[mine + LENGTH + i]);
    }
    return sum;
}
