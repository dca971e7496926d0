// Complex values without imaginary part, written four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<f32>) {
    for (var k = 0u; k < 4u; k++) {
        buf[i + k] = vec2<u32>(bitcast<u32>(value[k]), 0u);
    }
}
