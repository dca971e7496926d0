// i64 values of f32 without their fraction; what does not fit becomes the nearest that does, NaN 0.
// @import lib/numeric/wide

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_signed(value: f32) -> vec2<u32> {
    let negative_sign = bitcast<u32>(value) > 0x7fffffffu;
    var words = f32_to_wide(value);
    if (words.y >> 31u) == 1u {
        words = vec2<u32>(0xffffffffu, 0x7fffffffu);
        return select(words, vec2<u32>(0u, 0x80000000u), negative_sign);
    }
    let low = ~words.x + 1u;
    let negative = vec2<u32>(low, ~words.y + u32(low == 0u));
    return select(words, negative, negative_sign);
}

fn buf_store4(i: u32, value: vec4<f32>) {
    for (var k = 0u; k < 4u; k++) {
        buf[i + k] = buf_signed(value[k]);
    }
}
