// What attention does first: nothing, as others have turned its queries and written the cache.

const buf_NORMED: bool = false;

fn buf_put(kv_head: u32, token: u32, thread: u32, lane: u32) {
}

fn buf_factor(squares: f32) -> f32 {
    return 1.0;
}

// Vector `vec4_index` of the token's query that begins at `start`; `factor` is of a norm.
fn buf_query4(start: u32, token: u32, vec4_index: u32, factor: f32) -> vec4<f32> {
    return q_load4(start + 4u * vec4_index);
}
