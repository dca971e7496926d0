// The heads of new tokens: vectors of four, turned by the angles of a table as in rope.wgsl, and their
// values, which go into rows of the cache. The importing file has WG, what lib/attention/paged has, and as `k` and
// `v` a cache that may be written. Of a vector of the first PAIRS values the partner, which holds the other
// half of its pairs, lies PAIRS values further; INTERLEAVED pairs are neighbours in one vector.
// @import formats/store/f32 as new_value
// @import formats/vec4/f32 as angles

const INTERLEAVED: bool = false;
const COLS: u32 = 8u;            // of a head
const V_COLS: u32 = 8u;
const PAIRS: u32 = 4u;
const KEY_AT: u32 = 0u;          // where the first token's keys begin, and its values
const VALUE_AT: u32 = 0u;
const VALUE_STRIDE: u32 = 0u;    // from its values to the next token's; keys lie as queries do
const TOKENS: u32 = 1u;
const HALF_VEC4S: u32 = PAIRS / 4u;
const WHOLE: bool = 2u * PAIRS == COLS;  // no value stays as it is

@group(0) @binding(0) var<storage, read> slot: array<i32>;

// Whether a work group of `token` puts the key and value of token `t` into the cache: its own, and those
// that its own sees, as work groups do not wait for one another. All of them put the same.
fn puts(t: u32, token: u32) -> bool {
    let position = min(u32(max(position_of(t), 0)), params.table_width * params.block - 1u);
    return TOKENS == 1u || t == token || u32(slot[t]) == cache_row(sequence_of(token), position);
}

// Steps from the first token's to another one's.
fn steps_to(token: u32, step: u32) -> u32 {
    return select(token * step, 0u, TOKENS == 1u);
}

// Where the key of a token and head begins.
fn key_of(token: u32, kv_head: u32) -> u32 {
    return KEY_AT + steps_to(token, params.q_token_stride) + kv_head * COLS;
}

// The vector that holds the other half of this one's pairs; itself where there is none.
fn partner_of(vec4_index: u32) -> u32 {
    if INTERLEAVED || (!WHOLE && vec4_index >= 2u * HALF_VEC4S) {
        return vec4_index;
    }
    return select(vec4_index - HALF_VEC4S, vec4_index + HALF_VEC4S, vec4_index < HALF_VEC4S);
}

fn turned4(token: u32, vec4_index: u32, own: vec4<f32>, partner: vec4<f32>) -> vec4<f32> {
    if !WHOLE && vec4_index >= 2u * HALF_VEC4S {
        return own;
    }
    let first = steps_to(token, PAIRS / 2u);
    if INTERLEAVED {
        let both = angles_load4(first + vec4_index);
        let real = own.xz * both.xz - own.yw * both.yw;
        let imaginary = own.xz * both.yw + own.yw * both.xz;
        return vec4<f32>(real.x, imaginary.x, real.y, imaginary.y);
    }
    let is_first = vec4_index < HALF_VEC4S;
    let at = first + 2u * select(vec4_index - HALF_VEC4S, vec4_index, is_first);
    let early = angles_load4(at);
    let late = angles_load4(at + 1u);
    let cosine = vec4<f32>(early.xz, late.xz);
    let sine = vec4<f32>(early.yw, late.yw);
    return own * cosine + partner * select(sine, -sine, is_first);
}

fn put_value(token: u32, row: u32, kv_head: u32, thread: u32) {
    let start = VALUE_AT + steps_to(token, VALUE_STRIDE) + kv_head * V_COLS;
    let at = (row * params.kv_heads + kv_head) * params.v_vec4s;
    for (var vec4_index = thread; vec4_index < V_COLS / 4u; vec4_index += WG) {
        v_put4(at + vec4_index, new_value_load4(start + vec4_index * 4u));
    }
}
