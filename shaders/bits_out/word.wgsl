// Values of four bytes, written as they are, four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<u32>>;

fn buf_write4(i: u32, bits: vec4<u32>) {
    buf[i / 4u] = bits;
}
