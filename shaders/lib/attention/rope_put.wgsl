// What attention of one token does first: as rope_put.wgsl, it rotates the queries of its rows, where
// they lie, and puts the key and value of its head into the cache, which the work groups that share
// a head all do, with the same values. The importing file has what lib/attention/token_put needs, and `q_load4`.
// @import formats/store/f32 as new_key
// @import lib/attention/token_put

fn buf_prepare(kv_head: u32, first: u32, last: u32, thread: u32) {
    let each = COLS / 8u;
    for (var i = thread; i < (last - first) * each; i += WG) {
        let start = query_of(first + i / each, kv_head);
        let places = places_of(i % each, PAIRS);
        put_query(start, i % each, q_load4(start + places.x), q_load4(start + places.y));
    }
    // A slot outside the cache writes nothing.
    let row = u32(slot[0]);
    if row < params.k_rows {
        let start = KEY_AT + kv_head * COLS;
        for (var octet = thread; octet < each; octet += WG) {
            let places = places_of(octet, PAIRS);
            put_key(row, kv_head, octet, new_key_load4(start + places.x), new_key_load4(start + places.y));
        }
        put_value(row, kv_head, thread);
    }
    storageBarrier();
}
