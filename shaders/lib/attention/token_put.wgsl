// Where the heads of one token go: queries, turned, to where they lie, keys, turned, and values into
// their row of the cache. The importing file has WG, what lib/attention/paged has, `q_store4`, and as `k` and
// `v` a cache that may be written.
// @import formats/store/f32 as new_value
// @import lib/rope/turned

const COLS: u32 = 8u;            // of a head
const V_COLS: u32 = 8u;
const PAIRS: u32 = 4u;
const KEY_AT: u32 = 0u;          // where the token's keys begin, and its values
const VALUE_AT: u32 = 0u;

@group(0) @binding(0) var<storage, read> slot: array<i32>;

// `a` and `b` are the vectors of an octet of the query that begins at `start`.
fn put_query(start: u32, octet: u32, a: vec4<f32>, b: vec4<f32>) {
    let places = places_of(octet, PAIRS);
    let made = turned(octet, PAIRS, 0u, a, b);
    q_store4(start + places.x, made[0]);
    q_store4(start + places.y, made[1]);
}

fn put_key(row: u32, kv_head: u32, octet: u32, a: vec4<f32>, b: vec4<f32>) {
    let places = places_of(octet, PAIRS);
    let made = turned(octet, PAIRS, 0u, a, b);
    let at = (row * params.kv_heads + kv_head) * params.k_vec4s;
    k_put4(at + places.x / 4u, made[0]);
    k_put4(at + places.y / 4u, made[1]);
}

fn put_value(row: u32, kv_head: u32, thread: u32) {
    let at = (row * params.kv_heads + kv_head) * params.v_vec4s;
    for (var vec4_index = thread; vec4_index < V_COLS / 4u; vec4_index += WG) {
        v_put4(at + vec4_index, new_value_load4(VALUE_AT + kv_head * V_COLS + vec4_index * 4u));
    }
}
