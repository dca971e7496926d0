// Values of eight bytes, written as they are, four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<u32>>;

fn buf_store4(i: u32, a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32>) {
    buf[i / 2u] = vec4<u32>(a, b);
    buf[i / 2u + 1u] = vec4<u32>(c, d);
}

fn buf_load(i: u32) -> vec2<u32> {
    let pair = buf[i / 2u];
    return select(pair.xy, pair.zw, (i & 1u) == 1u);
}
