// i16 values, written four at a time, their low bits; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<i32>) {
    let low = bitcast<vec4<u32>>(value) & vec4<u32>(0xffffu);
    buf[i / 4u] = vec2<u32>(low.x | (low.y << 16u), low.z | (low.w << 16u));
}

fn buf_load(i: u32) -> i32 {
    return extractBits(bitcast<i32>(buf[i / 4u][(i % 4u) / 2u]), (i % 2u) * 16u, 16u);
}

fn buf_load4(i: u32) -> vec4<i32> {
    return vec4<i32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
