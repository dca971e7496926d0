// Values of one byte, written as they are, the four of a word at once; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<u32>;

fn buf_store4(i: u32, a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) {
    buf[i / 4u] = a.x | (b.x << 8u) | (c.x << 16u) | (d.x << 24u);
}

fn buf_load(i: u32) -> vec2<u32> {
    return vec2<u32>(extractBits(buf[i / 4u], (i % 4u) * 8u, 8u), 0u);
}
