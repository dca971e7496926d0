// A result of numbers: rows may have any length.

@group(0) @binding(0) var<storage, read_write> buf: array<f32>;

fn buf_put(i: u32, value: f32) {
    buf[i] = value;
}

fn buf_put4(i: u32, values: vec4<f32>) {
    buf[i] = values.x;
    buf[i + 1u] = values.y;
    buf[i + 2u] = values.z;
    buf[i + 3u] = values.w;
}
