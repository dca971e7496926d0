// S = exp(decay) S, S += k (beta (v - Sᵀ k))ᵀ, y = scale Sᵀ q: the gated delta rule. With UNIT keys and
// queries are divided by their lengths, with LOGITS beta is a sigmoid of what is given, with STEPS decay is
// rate · softplus(decay + bias).
// @import formats/load/f32 as q
// @import formats/load/f32 as k
// @import formats/load/f32 as v
// @import formats/load/f32 as decay
// @import formats/load/f32 as beta
// @import lib/linear/no_bias as rate
// @import lib/linear/no_bias as bias
// @import lib/numeric/softplus
// @import lib/recurrent/head_scan
// @import lib/recurrent/shared_decay

const UNIT: bool = false;
const LOGITS: bool = false;
const STEPS: bool = false;

// `each` heads have their betas beside each other.
struct Params {
    groups: u32, column_tiles: u32, sequences: u32, tokens: u32, heads: u32, rows: u32, cols: u32,
    slots: u32, group: u32, key_heads: u32, scale: f32, eps: f32, each: u32, state_offset: u32, runs_offset: u32,
    q_offset: u32, k_offset: u32, v_offset: u32, decay_offset: u32, beta_offset: u32,
    q_strides: vec4<u32>, k_strides: vec4<u32>, v_strides: vec4<u32>, decay_strides: vec4<u32>,
    beta_strides: vec4<u32>, rate_offset: u32, rate_strides: vec4<u32>, bias_offset: u32,
    bias_strides: vec4<u32>,
}

fn fetch(vector: u32, token: u32, head: u32, row: u32) -> vec4<f32> {
    let rows = rows_at(row);
    let key_head = head / params.group % params.key_heads;
    var values: vec4<f32>;
    if vector == 0u {
        let at = token * params.decay_strides.y + head * params.decay_strides.z;
        values = decay_gather4(params.decay_offset + at + rows * params.decay_strides.w);
        if STEPS {
            for (var i = 0u; i < 4u; i++) {
                values[i] = rated(head, rows[i], values[i]);
            }
        }
        values = exp(values);
    } else if vector == 1u {
        let at = token * params.k_strides.y + key_head * params.k_strides.z;
        values = k_gather4(params.k_offset + at + rows * params.k_strides.w);
    } else {
        let at = token * params.q_strides.y + key_head * params.q_strides.z;
        values = q_gather4(params.q_offset + at + rows * params.q_strides.w);
    }
    return there(row, values);
}

fn rated(head: u32, row: u32, step: f32) -> f32 {
    let rate_at = head * params.rate_strides.z + row * params.rate_strides.w;
    let bias_at = head * params.bias_strides.z + row * params.bias_strides.w;
    let width = softplus(step + bias_load(params.bias_offset + bias_at));
    return rate_load(params.rate_offset + rate_at) * width;
}

fn fetch_own(token: u32, head: u32, column: u32) -> vec2<f32> {
    let at = token * params.v_strides.y + head * params.v_strides.z + column * params.v_strides.w;
    let place = vec3<u32>(token, head / params.each, head % params.each) * params.beta_strides.yzw;
    var beta = beta_load(params.beta_offset + place.x + place.y + place.z);
    if LOGITS {
        beta = 1.0 / (1.0 + exp(-beta));
    }
    return vec2<f32>(v_load(params.v_offset + at), beta);
}

fn begin(head: u32, column: u32, row: u32) {
}

var<workgroup> squares: array<vec2<f32>, WG>;

fn advance(staged_at: u32, own: vec2<f32>, lane: u32) -> f32 {
    let mine = staged_at + lane / COLS * VEC4S;
    var known = 0.0;
    var lengths = vec2<f32>(0.0);
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        let k = staged[mine + LENGTH + i];
        let q = staged[mine + 2u * LENGTH + i];
        states[i] *= decay_at(staged_at, mine, i);
        known += dot(states[i], k);
        lengths += vec2<f32>(dot(k, k), dot(q, q));
    }
    squares[lane] = lengths;  // which others read behind the barrier of the next sum
    let seen = column_sum(known, 2u, lane);
    let inverse = inverse_lengths(lane);
    let change = own.y * (own.x - seen * inverse.x) * inverse.x;
    var sum = 0.0;
    // @unroll
    for (var i = 0u; i < VEC4S; i++) {
        states[i] += staged[mine + LENGTH + i] * change;
        sum += dot(states[i], staged[mine + 2u * LENGTH + i]);
    }
    return sum * inverse.y * params.scale;
}

// What a key and a query are multiplied with.
fn inverse_lengths(lane: u32) -> vec2<f32> {
    if !UNIT {
        return vec2<f32>(1.0);
    }
    var sums = vec2<f32>(0.0);
    for (var i = 0u; i < PARTS; i++) {
        sums += squares[i * COLS + lane % COLS];
    }
    return 1.0 / sqrt(sums + params.eps);
}
