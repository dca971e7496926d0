// Values of two bytes, written as they are, four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) {
    buf[i / 4u] = vec2<u32>(a.x | (b.x << 16u), c.x | (d.x << 16u));
}

fn buf_load(i: u32) -> vec2<u32> {
    return vec2<u32>(extractBits(buf[i / 4u][(i / 2u) % 2u], (i % 2u) * 16u, 16u), 0u);
}
