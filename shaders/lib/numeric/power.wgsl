// Powers, with the cases of C's pow: WGSL's own is undefined below zero, and as exact as its log2.
// @import lib/numeric/log
// @import lib/numeric/scaled

const POWER_ONE: u32 = 0x3f800000u;
const POWER_INFINITE: u32 = 0x7f800000u;
const POWER_NAN: u32 = 0x7fc00000u;

// The first half of a number's bits: a product of two such numbers is exact.
fn upper_bits(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4<u32>(0xfffff000u));
}

// |x|ⁿ by squaring, for whole n up to 15.
fn whole_power(x: vec4<f32>, n: vec4<u32>) -> vec4<f32> {
    var square = abs(x);
    var result = vec4<f32>(1.0);
    // @unroll
    for (var bit = 0u; bit < 4u; bit++) {
        result = select(result, result * square, (n & vec4<u32>(1u << bit)) != vec4<u32>(0u));
        square = square * square;
    }
    return result;
}

// |x|ʸ = 2^(y · log2 |x|), the exponent kept in parts whose sums are exact but for the last.
fn general_power(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    let rest = 1.4426950408889634 * log_of_rest(parts.rest);
    let y_upper = upper_bits(y);
    let rest_upper = upper_bits(rest);
    let whole = y_upper * parts.exponent;
    let part = y_upper * rest_upper;
    let lower = (y - y_upper) * (parts.exponent + rest) + y_upper * (rest - rest_upper);
    let limit = vec4<f32>(252.0);
    let near = clamp(round(whole + part + lower), -limit, limit);
    let left = clamp((whole - near) + part + lower, -limit, limit);
    return scaled(exp2(left), near);
}

fn power_of(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let x_bits = bitcast<vec4<u32>>(x);
    let y_bits = bitcast<vec4<u32>>(y);
    let a = x_bits & vec4<u32>(0x7fffffffu);
    let b = y_bits & vec4<u32>(0x7fffffffu);
    let infinite = vec4<u32>(POWER_INFINITE);
    let falls = y_bits > vec4<u32>(0x7fffffffu);

    // |y| as an integer where it is one: from 2²⁴ on all are, and even.
    let small = b < vec4<u32>(0x4b800000u);
    let count = vec4<u32>(select(vec4<f32>(), abs(y), small));
    let whole = !small | (vec4<f32>(count) == abs(y));
    let odd = small & whole & ((count & vec4<u32>(1u)) == vec4<u32>(1u));

    let brief = whole & small & (count < vec4<u32>(16u));
    let multiplied = whole_power(x, count);
    let of_whole = select(multiplied, 1.0 / multiplied, falls);
    var found = bitcast<vec4<u32>>(select(general_power(x, y), of_whole, brief));
    // What multiplying lost below the smallest number is lost above the largest in its inverse.
    let lost = brief & falls & (bitcast<vec4<u32>>(multiplied) == vec4<u32>(0u));
    found = select(found, infinite, lost);

    // 0 and ∞ as either operand: the result is one of them.
    let of_end = select(vec4<u32>(0u), infinite, (a == infinite) != falls);
    found = select(found, of_end, (a == vec4<u32>(0u)) | (a == infinite));
    let of_limit = select(vec4<u32>(0u), infinite, (a > vec4<u32>(POWER_ONE)) != falls);
    found = select(found, of_limit, b == infinite);
    found = select(found, vec4<u32>(POWER_ONE), (b == infinite) & (a == vec4<u32>(POWER_ONE)));

    let negative = x_bits > vec4<u32>(0x7fffffffu);
    found = select(found, found | vec4<u32>(0x80000000u), negative & odd);
    let no_root = negative & !whole & (a != vec4<u32>(0u)) & (a < infinite);
    let is_nan = (a > infinite) | (b > infinite) | (no_root & (b < infinite));
    found = select(found, vec4<u32>(POWER_NAN), is_nan);
    let unit = (b == vec4<u32>(0u)) | (x_bits == vec4<u32>(POWER_ONE));
    return bitcast<vec4<f32>>(select(found, vec4<u32>(POWER_ONE), unit));
}
