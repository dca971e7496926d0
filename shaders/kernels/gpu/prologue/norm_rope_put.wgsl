// As prologue/rope_put.wgsl, after the norms of query and key heads, as rms_norm.wgsl makes them.
// @import formats/store/f32 as new_key
// @import formats/vec4/f32 as query_norm
// @import formats/vec4/f32 as key_norm
// @import kernels/gpu/lib/new_token

const buf_NORMED: bool = true;

fn buf_put(kv_head: u32, token: u32, thread: u32, lane: u32) {
    for (var t = 0u; t < TOKENS; t++) {
        let start = key_of(t, kv_head);
        let factor = key_factor(start, lane);
        // A slot outside the cache writes nothing.
        if u32(slot[t]) < params.k_rows && puts(t, token) {
            put_token(t, u32(slot[t]), kv_head, thread, factor);
        }
    }
    storageBarrier();
}

fn key_factor(start: u32, lane: u32) -> f32 {
    var squares = 0.0;
    for (var vec4_index = lane; vec4_index < COLS / 4u; vec4_index += LANES) {
        let values = new_key_load4(start + 4u * vec4_index);
        squares += dot(values, values);
    }
    return buf_factor(across_lanes(squares));
}

fn put_token(token: u32, row: u32, kv_head: u32, thread: u32, factor: f32) {
    let start = key_of(token, kv_head);
    for (var vec4_index = thread; vec4_index < COLS / 4u; vec4_index += WG) {
        let own = normed_key4(start, vec4_index, factor);
        let key = turned4(token, vec4_index, own, normed_key4(start, partner_of(vec4_index), factor));
        k_put4((row * params.kv_heads + kv_head) * params.k_vec4s + vec4_index, key);
    }
    put_value(token, row, kv_head, thread);
}

fn normed_key4(start: u32, vec4_index: u32, factor: f32) -> vec4<f32> {
    return new_key_load4(start + 4u * vec4_index) * factor * key_norm_load4(vec4_index);
}

// The factor of the norm, from the sum of squares of its values.
fn buf_factor(squares: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(COLS) + params.eps);
}

// Vector `vec4_index` of the token's query that begins at `start`, behind a norm that has this factor.
fn buf_query4(start: u32, token: u32, vec4_index: u32, factor: f32) -> vec4<f32> {
    let own = normed_query4(start, vec4_index, factor);
    return turned4(token, vec4_index, own, normed_query4(start, partner_of(vec4_index), factor));
}

fn normed_query4(start: u32, vec4_index: u32, factor: f32) -> vec4<f32> {
    return q_load4(start + 4u * vec4_index) * factor * query_norm_load4(vec4_index);
}
