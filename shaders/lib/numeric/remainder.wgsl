// Remainders of f32 without rounding, by long division of the mantissas: a - b · trunc(a / b), as WGSL
// has it, is far off where the quotient is large.
// @import lib/numeric/nan
// @import lib/numeric/divided
// @import lib/numeric/sign

struct Binary { exponent: i32, mantissa: u32 }

// A finite number but zero as mantissa · 2^(exponent - 150), the mantissa of 24 bits.
fn binary_of(bits: u32) -> Binary {
    let exponent = i32((bits >> 23u) & 0xffu);
    let mantissa = bits & 0x7fffffu;
    if exponent > 0 {
        return Binary(exponent, mantissa | 0x800000u);
    }
    let shift = countLeadingZeros(mantissa) - 8u;
    return Binary(1 - i32(shift), mantissa << shift);
}

// |a| modulo |b| of finite numbers, b not zero; with the sign of a.
fn division_rest(a: f32, b: f32) -> f32 {
    let bits = bitcast<u32>(a);
    if (bits & 0x7fffffffu) < (bitcast<u32>(b) & 0x7fffffffu) {
        return a;
    }
    let dividend = binary_of(bits);
    let divisor = binary_of(bitcast<u32>(b));
    var rest = dividend.mantissa % divisor.mantissa;
    var left = dividend.exponent - divisor.exponent;
    while left > 0 && rest > 0u {
        let count = min(left, 8);
        rest = (rest << u32(count)) % divisor.mantissa;
        left -= count;
    }
    let sign = bits & 0x80000000u;
    if rest == 0u {
        return bitcast<f32>(sign);
    }
    let shift = countLeadingZeros(rest) - 8u;
    let exponent = divisor.exponent - i32(shift);
    let mantissa = rest << shift;
    if exponent > 0 {
        return bitcast<f32>(sign | ((u32(exponent - 1) << 23u) + mantissa));
    }
    return bitcast<f32>(sign | (mantissa >> u32(1 - exponent)));
}

// C's fmod: what is left of a, with its sign.
fn truncated_rest(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let large = bitcast<vec4<u32>>(a) & vec4<u32>(0x7fffffffu);
    let small = bitcast<vec4<u32>>(b) & vec4<u32>(0x7fffffffu);
    let infinite = vec4<u32>(0x7f800000u);
    let sound = (large < infinite) & (small < infinite) & (small > vec4<u32>(0u));
    var rest = a;
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        if sound[k] {
            rest[k] = division_rest(a[k], b[k]);
        }
    }
    let none = (large >= infinite) | (small > infinite) | (small == vec4<u32>(0u));
    return nan_where(none, rest);
}

// Whether what is left of a has to be moved by b to have its sign.
fn rest_moves(rest: vec4<f32>, b: vec4<f32>) -> vec4<bool> {
    let some = (bitcast<vec4<u32>>(rest) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0u);
    return some & (is_negative(rest) != is_negative(b));
}

fn floored_rest(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let rest = truncated_rest(a, b);
    let zero = (bitcast<vec4<u32>>(rest) & vec4<u32>(0x7fffffffu)) == vec4<u32>(0u);
    let of_b = select(rest, with_sign_of(b, rest), zero);
    return select(of_b, rest + b, rest_moves(rest, b));
}

// The quotient is near a whole number, once what is left is taken off; an infinity stays one.
fn floored_quotient(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let rest = truncated_rest(a, b);
    let moved = select(vec4<f32>(0.0), vec4<f32>(1.0), rest_moves(rest, b));
    let quotient = round(divided(a - rest, b)) - moved;
    let sign = bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) ^ bitcast<vec4<u32>>(b));
    let zero = quotient == vec4<f32>(0.0);
    let found = keep_nan(rest, select(quotient, with_sign_of(sign, quotient), zero));
    let a_bits = bitcast<vec4<u32>>(a) & vec4<u32>(0x7fffffffu);
    let b_bits = bitcast<vec4<u32>>(b) & vec4<u32>(0x7fffffffu);
    let infinite = vec4<u32>(0x7f800000u);
    let by_zero = (b_bits == vec4<u32>(0u)) & (a_bits > vec4<u32>(0u)) & (a_bits <= infinite);
    let unbounded = by_zero | ((a_bits == infinite) & (b_bits < infinite));
    return infinite_where(unbounded, sign, found);
}
