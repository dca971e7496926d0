// bool values, written four at a time, their low bits; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<u32>;

fn buf_store4(i: u32, value: vec4<u32>) {
    let low = value & vec4<u32>(0xffu);
    buf[i / 4u] = low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
}

fn buf_load(i: u32) -> u32 {
    return extractBits(buf[i / 4u], (i % 4u) * 8u, 8u);
}

fn buf_load4(i: u32) -> vec4<u32> {
    return vec4<u32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
