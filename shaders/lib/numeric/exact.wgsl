// Arithmetic whose last bit does not depend on the driver: WGSL lets a division be off by 2.5
// units, and a conversion to f16 round either way.

// a / b rounded to nearest, for a from 0 and an odd b below 128; 0 for a below 2^-100.
fn exact_quotient(a: f32, b: u32) -> f32 {
    let bits = bitcast<u32>(a);
    let exponent = bits >> 23u;
    if exponent < 27u {
        return 0.0;
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    var shift = 32u - countLeadingZeros(b);
    if (mantissa << shift) / b >= 0x1000000u {
        shift -= 1u;
    }
    let dividend = mantissa << shift;
    var quotient = dividend / b;
    quotient += select(0u, 1u, 2u * (dividend - quotient * b) > b);
    return bitcast<f32>(((exponent - shift) << 23u) + (quotient - 0x800000u));
}

// 1 / a rounded to nearest, for a from 0; 0 for 0.
fn exact_inverse(a: f32) -> f32 {
    let bits = bitcast<u32>(a);
    let exponent = bits >> 23u;
    if exponent == 0u || exponent > 252u {
        return 0.0;
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    // 2^47 / mantissa, at first about; the remainder, small, is right in 32 bits that wrap.
    var quotient = u32(16777216.0 / bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u));
    var rest = -bitcast<i32>(quotient * mantissa);
    let divisor = i32(mantissa);
    while rest < 0 {
        rest += divisor;
        quotient -= 1u;
    }
    while rest >= divisor {
        rest -= divisor;
        quotient += 1u;
    }
    quotient += select(0u, 1u, 2 * rest > divisor);
    return bitcast<f32>(((253u - exponent) << 23u) + (quotient - 0x800000u));
}

// Bits of a number as f16, rounded to nearest even.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    let exponent = magnitude >> 23u;
    if exponent < 102u {
        return sign;
    }
    if exponent < 113u {
        let mantissa = (bits & 0x7fffffu) | 0x800000u;
        let shift = 126u - exponent;
        let even = (mantissa >> shift) & 1u;
        return sign | ((mantissa + (1u << (shift - 1u)) - 1u + even) >> shift);
    }
    if exponent >= 143u {
        return sign | select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
    }
    return sign | (((magnitude + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u) - 0x1c000u);
}

// x · factor; the maximum, far below every use, keeps a compiler from fusing it with a sum to come.
fn exact_product(x: vec4<f32>, factor: f32) -> vec4<f32> {
    return max(x * factor, vec4<f32>(-65536.0));
}
