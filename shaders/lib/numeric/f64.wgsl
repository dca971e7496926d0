// Between f64, as pairs of words with the low one first, and f32.

// Nearest f32, ties to even; too large becomes infinite, too small for a normal number becomes zero.
fn narrowed(words: vec2<u32>) -> f32 {
    let sign = words.y & 0x80000000u;
    let exponent = i32((words.y >> 20u) & 0x7ffu) - 896;
    let mantissa = ((words.y & 0xfffffu) << 3u) | (words.x >> 29u);
    if exponent >= 255 {
        let is_nan = exponent == 1151 && ((words.y & 0xfffffu) | words.x) != 0u;
        return bitcast<f32>(sign | 0x7f800000u | select(0u, 0x400000u, is_nan));
    }
    if exponent <= 0 {
        return bitcast<f32>(sign);
    }
    // A carry out of the mantissa goes into the exponent, as it should.
    let rest = words.x & 0x1fffffffu;
    let up = rest > 0x10000000u || (rest == 0x10000000u && (mantissa & 1u) == 1u);
    return bitcast<f32>(sign | ((u32(exponent) << 23u) + mantissa + u32(up)));
}

// The same number as f64; subnormal f32 become zero.
fn widened(value: f32) -> vec2<u32> {
    let bits = bitcast<u32>(value);
    let sign = bits & 0x80000000u;
    let exponent = (bits >> 23u) & 0xffu;
    let mantissa = bits & 0x7fffffu;
    if exponent == 0u {
        return vec2<u32>(0u, sign);
    }
    let wide = select(exponent + 896u, 2047u, exponent == 255u);
    return vec2<u32>(mantissa << 29u, sign | (wide << 20u) | (mantissa >> 3u));
}
