// What attention of one token does first: as rope_put.wgsl, it turns the queries of its rows, where
// they lie, and puts the key and value of its head into the cache, which the work groups that share
// a head all do, with the same values. The importing file has WG, what lib/paged has, `q_load4`,
// `q_store4`, and as `k` and `v` a cache that may be written.
// @import store/f32 as new_key
// @import store/f32 as new_value
// @import lib/turned

const COLS: u32 = 8u;            // of a head
const V_COLS: u32 = 8u;
const PAIRS: u32 = 4u;
const KEY_AT: u32 = 0u;          // where the token's keys begin, and its values
const VALUE_AT: u32 = 0u;

@group(0) @binding(0) var<storage, read> slot: array<i32>;

fn buf_prepare(kv_head: u32, first: u32, last: u32, thread: u32) {
    let each = COLS / 8u;
    for (var i = thread; i < (last - first) * each; i += WG) {
        let start = query_of(first + i / each, kv_head);
        let places = places_of(i % each, PAIRS);
        let made = turned(i % each, PAIRS, 0u, q_load4(start + places.x), q_load4(start + places.y));
        q_store4(start + places.x, made[0]);
        q_store4(start + places.y, made[1]);
    }
    // A slot outside the cache writes nothing.
    let row = u32(slot[0]);
    if row < params.k_rows {
        for (var octet = thread; octet < each; octet += WG) {
            let start = KEY_AT + kv_head * COLS;
            let places = places_of(octet, PAIRS);
            let made = turned(octet, PAIRS, 0u, new_key_load4(start + places.x), new_key_load4(start + places.y));
            let at = (row * params.kv_heads + kv_head) * params.k_quads;
            k_put4(at + places.x / 4u, made[0]);
            k_put4(at + places.y / 4u, made[1]);
        }
        for (var quad = thread; quad < V_COLS / 4u; quad += WG) {
            let at = (row * params.kv_heads + kv_head) * params.v_quads;
            v_put4(at + quad, new_value_load4(VALUE_AT + kv_head * V_COLS + quad * 4u));
        }
    }
    storageBarrier();
}
