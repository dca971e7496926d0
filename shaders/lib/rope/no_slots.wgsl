// No slots, and no binding for them.

fn buf_load(i: u32) -> i32 {
    return 0;
}
