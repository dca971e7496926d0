// u16 values, 2 in a word.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> u32 {
    return extractBits(buf[i / 2u], (i % 2u) * 16u, 16u);
}

fn buf_load4(i: u32) -> vec4<u32> {
    return vec4<u32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
