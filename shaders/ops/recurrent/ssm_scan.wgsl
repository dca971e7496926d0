// state = state · exp(dt · a) + b · (dt · x), y = state · c, token by token: the scan of a state
// space model. A thread keeps the states of one value of a head; y comes first, then the new
// states.
// @import formats/load/f32 as state
// @import formats/load/f32 as x
// @import formats/load/f32 as dt
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import formats/load/f32 as c
// @import lib/index/grid
// @import lib/numeric/softplus

const WG: u32 = 64u;
const STATES: u32 = 16u;
const SHARED_DECAY: bool = false;  // a head has one `a` for all its states

struct Params {
    size: u32, tokens: u32, heads: u32, cols: u32, parts: u32, rows: u32, results: u32,
    state_offset: u32, x_offset: u32, dt_offset: u32, a_offset: u32, b_offset: u32, c_offset: u32,
    ids_offset: u32,
}

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let column = i % params.cols;
    let head = (i / params.cols) % params.heads;
    let sequence = i / params.cols / params.heads;
    let part = head / (params.heads / params.parts);
    let row = u32(clamp(ids[params.ids_offset + sequence], 0, i32(params.rows) - 1));
    let place = (row * params.heads + head) * params.cols + column;
    let from_state = params.state_offset + place * STATES;
    var states: array<f32, STATES>;
    for (var n = 0u; n < STATES; n++) {
        states[n] = state_load(from_state + n);
    }
    for (var t = 0u; t < params.tokens; t++) {
        let token = sequence * params.tokens + t;
        let step = softplus(dt_load(params.dt_offset + token * params.heads + head));
        let at = (token * params.heads + head) * params.cols + column;
        let scaled = x_load(params.x_offset + at) * step;
        let shared_at = (token * params.parts + part) * STATES;
        var decay = exp(step * a_load(params.a_offset + select(head * STATES, head, SHARED_DECAY)));
        var sum = 0.0;
        for (var n = 0u; n < STATES; n++) {
            if !SHARED_DECAY {
                decay = exp(step * a_load(params.a_offset + head * STATES + n));
            }
            states[n] = states[n] * decay + b_load(params.b_offset + shared_at + n) * scaled;
            sum += states[n] * c_load(params.c_offset + shared_at + n);
        }
        y[at] = sum;
    }
    for (var n = 0u; n < STATES; n++) {
        y[params.results + i * STATES + n] = states[n];
    }
}
