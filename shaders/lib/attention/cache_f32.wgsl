// f32 values of a cache as vec4, read and written: `i` counts vectors.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<f32>>;

fn buf_load4(i: u32) -> vec4<f32> {
    return buf[i];
}

fn buf_put4(i: u32, value: vec4<f32>) {
    buf[i] = value;
}
