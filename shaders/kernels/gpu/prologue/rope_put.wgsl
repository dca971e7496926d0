// What attention of one token does first: it turns the queries of its rows as they come into registers,
// and puts the key and value of its head into the cache, which all work groups that share a head do,
// with the same values.
// @import formats/store/f32 as new_key
// @import kernels/gpu/lib/new_token

const buf_NORMED: bool = false;

fn buf_put(kv_head: u32, thread: u32, lane: u32) {
    let start = KEY_AT + kv_head * COLS;
    // A slot outside the cache writes nothing.
    let row = u32(slot[0]);
    if row < params.k_rows {
        for (var quad = thread; quad < COLS / 4u; quad += WG) {
            let partner = partner_of(quad);
            let key = turned4(quad, new_key_load4(start + 4u * quad), new_key_load4(start + 4u * partner));
            k_put4((row * params.kv_heads + kv_head) * params.k_quads + quad, key);
        }
        put_value(row, kv_head, thread);
    }
    storageBarrier();
}

fn buf_factor(squares: f32) -> f32 {
    return 1.0;
}

// Vector `quad` of the query that begins at `start`; `factor` is of a norm.
fn buf_query4(start: u32, quad: u32, factor: f32) -> vec4<f32> {
    return turned4(quad, q_load4(start + 4u * quad), q_load4(start + 4u * partner_of(quad)));
}
