// u16 values, written four at a time, their low bits; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<u32>) {
    let low = value & vec4<u32>(0xffffu);
    buf[i / 4u] = vec2<u32>(low.x | (low.y << 16u), low.z | (low.w << 16u));
}
