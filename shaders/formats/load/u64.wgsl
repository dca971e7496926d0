// Low words of u64 values: what fits u32 is right, the rest wraps as in NumPy.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_load(i: u32) -> u32 {
    return buf[i].x;
}

fn buf_load4(i: u32) -> vec4<u32> {
    return vec4<u32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
