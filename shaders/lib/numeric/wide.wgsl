// Numbers of 64 bits, as pairs of words with the low one first.

// Nearest f32 of an unsigned number. The 32 bits from the first that is set go into one word, what is
// cut off stays as a sticky bit, and one conversion rounds.
fn wide_to_f32(words: vec2<u32>) -> f32 {
    if words.y == 0u {
        return f32(words.x);
    }
    let shift = countLeadingZeros(words.y);
    var top = words.y << shift;
    var rest = words.x << shift;
    if shift > 0u {
        top |= words.x >> (32u - shift);
    }
    return f32(top | u32(rest != 0u)) * exp2(f32(32u - shift));
}

// Magnitude of an f32 without its fraction; 2⁶⁴ and more become the largest number, NaN becomes 0.
fn f32_to_wide(value: f32) -> vec2<u32> {
    let bits = bitcast<u32>(value);
    let exponent = i32((bits >> 23u) & 0xffu) - 150;
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return vec2<u32>(0u, 0u);
    }
    if exponent >= 41 {
        return vec2<u32>(0xffffffffu, 0xffffffffu);
    }
    if exponent >= 32 {
        return vec2<u32>(0u, mantissa << u32(exponent - 32));
    }
    if exponent > 0 {
        let up = u32(exponent);
        return vec2<u32>(mantissa << up, mantissa >> (32u - up));
    }
    return vec2<u32>(select(mantissa >> u32(min(-exponent, 31)), 0u, exponent < -24), 0u);
}
