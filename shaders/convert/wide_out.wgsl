// Elements of eight bytes as pairs of words, written four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: array<vec2<u32>, 4>) {
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        buf[i + k] = value[k];
    }
}
