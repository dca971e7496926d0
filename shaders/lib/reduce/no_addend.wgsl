// Nothing that is added to a row, and no binding for it.

fn buf_load(i: u32) -> f32 {
    return 0.0;
}

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}
