// f16 values of a cache in vec4s, read and written: `i` counts vectors.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<f16>>;

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf[i]);
}

fn buf_put4(i: u32, value: vec4<f32>) {
    buf[i] = vec4<f16>(value);
}
