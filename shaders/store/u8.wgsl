// u8 values, written four at a time, their low bits; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<u32>;

fn buf_store4(i: u32, value: vec4<u32>) {
    let low = value & vec4<u32>(0xffu);
    buf[i / 4u] = low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}
