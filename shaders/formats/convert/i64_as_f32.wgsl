// i64 values as the nearest f32.
// @import lib/numeric/wide

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_load(i: u32) -> f32 {
    let words = buf[i];
    if (words.y >> 31u) == 0u {
        return wide_to_f32(words);
    }
    // Two's complement: the words inverted, plus one that may carry.
    let low = ~words.x + 1u;
    return -wide_to_f32(vec2<u32>(low, ~words.y + u32(low == 0u)));
}

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
