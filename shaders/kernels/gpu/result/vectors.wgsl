// A result of vectors of four: rows are whole vectors.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<f32>>;

fn buf_put(i: u32, value: f32) {
    buf[i / 4u][i % 4u] = value;
}

fn buf_put4(i: u32, values: vec4<f32>) {
    buf[i / 4u] = values;
}
