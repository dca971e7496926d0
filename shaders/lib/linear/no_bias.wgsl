// No bias, and no binding for one.

fn buf_load(i: u32) -> f32 {
    return 0.0;
}
