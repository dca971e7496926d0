// The heads of one new token: vectors of four, turned by the angles of a table as in rope.wgsl, and its
// value, which goes into a row of the cache. The importing file has WG, what lib/attention/paged has, and as `k` and
// `v` a cache that may be written. Of a vector of the first PAIRS values the partner, which holds the other
// half of its pairs, lies PAIRS values further; INTERLEAVED pairs are neighbours in one vector.
// @import formats/store/f32 as new_value
// @import formats/vec4/f32 as angles

const INTERLEAVED: bool = false;
const COLS: u32 = 8u;            // of a head
const V_COLS: u32 = 8u;
const PAIRS: u32 = 4u;
const KEY_AT: u32 = 0u;          // where the token's keys begin, and its values
const VALUE_AT: u32 = 0u;
const HALF_VEC4S: u32 = PAIRS / 4u;
const WHOLE: bool = 2u * PAIRS == COLS;  // no value stays as it is

@group(0) @binding(0) var<storage, read> slot: array<i32>;

// The vector that holds the other half of this one's pairs; itself where there is none.
fn partner_of(vec4_index: u32) -> u32 {
    if INTERLEAVED || (!WHOLE && vec4_index >= 2u * HALF_VEC4S) {
        return vec4_index;
    }
    return select(vec4_index - HALF_VEC4S, vec4_index + HALF_VEC4S, vec4_index < HALF_VEC4S);
}

fn turned4(vec4_index: u32, own: vec4<f32>, partner: vec4<f32>) -> vec4<f32> {
    if !WHOLE && vec4_index >= 2u * HALF_VEC4S {
        return own;
    }
    if INTERLEAVED {
        let both = angles_load4(vec4_index);
        let real = own.xz * both.xz - own.yw * both.yw;
        let imaginary = own.xz * both.yw + own.yw * both.xz;
        return vec4<f32>(real.x, imaginary.x, real.y, imaginary.y);
    }
    let is_first = vec4_index < HALF_VEC4S;
    let at = 2u * select(vec4_index - HALF_VEC4S, vec4_index, is_first);
    let early = angles_load4(at);
    let late = angles_load4(at + 1u);
    let cosine = vec4<f32>(early.xz, late.xz);
    let sine = vec4<f32>(early.yw, late.yw);
    return own * cosine + partner * select(sine, -sine, is_first);
}

fn put_value(row: u32, kv_head: u32, thread: u32) {
    let at = (row * params.kv_heads + kv_head) * params.v_vec4s;
    for (var vec4_index = thread; vec4_index < V_COLS / 4u; vec4_index += WG) {
        v_put4(at + vec4_index, new_value_load4(VALUE_AT + kv_head * V_COLS + vec4_index * 4u));
    }
}
