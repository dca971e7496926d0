// What attention of new tokens does first: it rotates the queries of its rows as they come into registers,
// and puts the key and value of its head into the cache, which all work groups that share a head do,
// with the same values.
// @import formats/store/f32 as new_key
// @import kernels/gpu/lib/new_token

const buf_NORMED: bool = false;

fn buf_put(kv_head: u32, token: u32, thread: u32, lane: u32) {
    for (var t = 0u; t < TOKENS; t++) {
        // A slot outside the cache writes nothing.
        if u32(slot[t]) < params.k_rows && puts(t, token) {
            put_token(t, u32(slot[t]), kv_head, thread);
        }
    }
    storageBarrier();
}

fn put_token(token: u32, row: u32, kv_head: u32, thread: u32) {
    let start = key_of(token, kv_head);
    for (var vec4_index = thread; vec4_index < COLS / 4u; vec4_index += WG) {
        let own = new_key_load4(start + 4u * vec4_index);
        let key = turned4(token, vec4_index, own, new_key_load4(start + 4u * partner_of(vec4_index)));
        k_put4((row * params.kv_heads + kv_head) * params.k_vec4s + vec4_index, key);
    }
    put_value(token, row, kv_head, thread);
}

fn buf_factor(squares: f32) -> f32 {
    return 1.0;
}

// Vector `vec4_index` of the token's query that begins at `start`; `factor` is of a norm.
fn buf_query4(start: u32, token: u32, vec4_index: u32, factor: f32) -> vec4<f32> {
    return turned4(token, vec4_index, q_load4(start + 4u * vec4_index), q_load4(start + 4u * partner_of(vec4_index)));
}
