// As lib/attention/rope_put.wgsl, after the norms of query and key heads, as rms_norm.wgsl makes
// them: a row_reduce a head. Keys stay as they are where they lie, since work groups that share a
// head all read them.
// @import formats/store/f32 as new_key
// @import formats/vec4/f32 as query_norm
// @import formats/vec4/f32 as key_norm
// @import lib/reduce/row_workgroup as row_reduce
// @import lib/attention/token_put

fn buf_prepare(kv_head: u32, first: u32, last: u32, thread: u32) {
    let each = COLS / 8u;
    let lane = row_reduce_lane(thread);
    let width = row_reduce_width();
    for (var row = first; row < last; row++) {
        let start = query_of(row, kv_head);
        var sum = 0.0;
        for (var i = lane; i < COLS / 4u; i += width) {
            let values = q_load4(start + i * 4u);
            sum += dot(values, values);
        }
        let factor = normed(row_reduce_sum(sum, lane));
        for (var octet = lane; octet < each; octet += width) {
            let places = places_of(octet, PAIRS);
            let a = q_load4(start + places.x) * factor * query_norm_load4(places.x / 4u);
            let b = q_load4(start + places.y) * factor * query_norm_load4(places.y / 4u);
            put_query(start, octet, a, b);
        }
    }
    let start = KEY_AT + kv_head * COLS;
    var sum = 0.0;
    for (var i = lane; i < COLS / 4u; i += width) {
        let values = new_key_load4(start + i * 4u);
        sum += dot(values, values);
    }
    let factor = normed(row_reduce_sum(sum, lane));
    // A slot outside the cache writes nothing.
    let row = u32(slot[0]);
    if row < params.k_rows {
        for (var octet = lane; octet < each; octet += width) {
            let places = places_of(octet, PAIRS);
            let a = new_key_load4(start + places.x) * factor * key_norm_load4(places.x / 4u);
            let b = new_key_load4(start + places.y) * factor * key_norm_load4(places.y / 4u);
            put_key(row, kv_head, octet, a, b);
        }
        put_value(row, kv_head, thread);
    }
    storageBarrier();
}

// The factor of the norm, from the sum of squares of its values.
fn normed(squares: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(COLS) + params.eps);
}
