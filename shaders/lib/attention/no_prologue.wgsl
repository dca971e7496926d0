// What attention does first: nothing, as others have turned its queries and written the cache.

fn buf_prepare(kv_head: u32, first: u32, last: u32, thread: u32) {
}
