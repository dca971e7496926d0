// f16 values, two in a word: no extension is needed to read them.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> f32 {
    let pair = unpack2x16float(buf[i / 2u]);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
