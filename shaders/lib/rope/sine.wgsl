// Sine of angles in radians, for every f32; drivers' own may be off by 2⁻¹¹, and more far from
// zero. An angle is reduced to [-π/4, π/4] by quarter turns, then a Taylor polynomial is taken.

const CLOSE: f32 = 1.6e6;  // 2²⁰ quarter turns

// Sine of `x` plus that many quarter turns: one makes it the cosine.
fn sine(x: vec4<f32>, shift: u32) -> vec4<f32> {
    var turns = round(x * 0.6366197723675814);
    // All parts of π/2 but the last have 4 bits: their products with up to 2²⁰ turns are exact.
    var r = x - turns * 1.5;
    r = r - turns * 0.0703125;
    r = r - turns * 4.57763671875e-4;
    r = r - turns * 2.47955322265625e-5;
    r = r - turns * 1.2675907951e-6;
    var quadrant = vec4<u32>(vec4<i32>(clamp(turns, vec4<f32>(-2e9), vec4<f32>(2e9))));
    if any(abs(x) > vec4<f32>(CLOSE)) {
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            if abs(x[k]) > CLOSE {
                let far = far_angle(x[k]);
                r[k] = far.rest;
                quadrant[k] = far.quadrant;
            }
        }
    }
    let r2 = r * r;
    let odd = r + r * r2 * (-1.6666667e-1 + r2 * (8.3333333e-3 + r2 * (-1.9841270e-4 + r2 * 2.7557319e-6)));
    let even = 1.0 + r2 * (-0.5 + r2 * (4.1666667e-2 + r2 * (-1.3888889e-3 + r2 * 2.4801587e-5)));
    let q = quadrant + vec4<u32>(shift);
    let value = select(odd, even, (q & vec4<u32>(1u)) == vec4<u32>(1u));
    return select(value, -value, (q & vec4<u32>(2u)) == vec4<u32>(2u));
}

struct Angle { rest: f32, quadrant: u32 }

// Payne & Hanek 1983: of mantissa times 2/π only those bits that are less than four turns matter, so
// 96 bits of 2/π are taken from where they begin.
fn far_angle(x: f32) -> Angle {
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 0xffu;
    if exponent == 255u {
        return Angle(bitcast<f32>(bits | 0x7fc00000u), 0u);  // NaN; x - x would be folded to 0
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    // Bits of 2/π behind 32 zeros.
    var table = array<u32, 10>(
        0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
        0xfe5163abu, 0xdebbc561u, 0xb7246e3au,
    );
    let skipped = exponent - 120u;
    let word = skipped / 32u;
    let shift = skipped % 32u;
    var window = vec3<u32>(table[word], table[word + 1u], table[word + 2u]);
    if shift > 0u {
        let next = vec3<u32>(window.yz, table[word + 3u]);
        window = (window << vec3<u32>(shift)) | (next >> vec3<u32>(32u - shift));
    }
    let low = mantissa * window.y + high_product(mantissa, window.z);
    let carry = high_product(mantissa, window.y) + u32(low < mantissa * window.y);
    let high = mantissa * window.x + carry;
    // Two bits of quarter turns, then their fraction; as a signed number it is the nearer rest.
    let fraction = bitcast<i32>((high << 2u) | (low >> 30u));
    let quarter = f32(fraction) * 2.3283064e-10 + f32(low << 2u) * 5.421011e-20;
    let quadrant = (high >> 30u) + u32(fraction < 0);
    let rest = quarter * 1.5707964;
    if x < 0.0 {
        return Angle(-rest, 0u - quadrant);
    }
    return Angle(rest, quadrant);
}

// Upper 32 bits of a product.
fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}
