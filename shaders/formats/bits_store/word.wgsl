// Values of four bytes, written one at a time to any place.

@group(0) @binding(0) var<storage, read_write> buf: array<u32>;

fn buf_put(i: u32, bits: vec2<u32>) {
    buf[i] = bits.x;
}
