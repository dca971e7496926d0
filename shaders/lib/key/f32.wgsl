// Keys of f32, which compare as integers in the order of the values; NaN has none. Drivers may
// assume that there is no NaN, and flush small numbers before they compare them, so bits are
// compared.

fn buf_of(value: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(value);
    let negative = bits > vec4<u32>(0x80000000u);   // both zeros have one key
    return select(bits | vec4<u32>(0x80000000u), ~bits, negative);
}

fn buf_unordered(value: vec4<f32>) -> vec4<bool> {
    let magnitude = bitcast<vec4<u32>>(value) & vec4<u32>(0x7fffffffu);
    return magnitude > vec4<u32>(0x7f800000u);
}
