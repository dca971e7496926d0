// Arithmetic, one function for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = a + b, with broadcasting.
// @import lib/elementwise/binary
fn apply_add(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return a + b;
}

// y = a - b, with broadcasting.
// @import lib/elementwise/binary
fn apply_sub(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return a - b;
}

// y = a · b value by value, with broadcasting.
// @import lib/elementwise/binary
fn apply_mul(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return a * b;
}

// y = a / b value by value, with broadcasting.
// @import lib/numeric/divided
// @import lib/elementwise/binary
fn apply_div(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return divided(a, b);
}

// y = a / b rounded down, with broadcasting.
// @import lib/numeric/remainder
// @import lib/elementwise/binary
fn apply_floor_divide(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return floored_quotient(a, b);
}

// y = a / b rounded down, integers, with broadcasting.
// @import lib/numeric/whole_division
// @import lib/elementwise/binary
fn apply_floor_divide_whole(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let found = whole_division(bitcast<vec4<u32>>(a), bitcast<vec4<u32>>(b));
    return bitcast<vec4<Value>>(found.quotient);
}

// y = a modulo b with the sign of b, with broadcasting.
// @import lib/numeric/remainder
// @import lib/elementwise/binary
fn apply_remainder(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return floored_rest(a, b);
}

// y = a modulo b with the sign of b, integers, with broadcasting.
// @import lib/numeric/whole_division
// @import lib/elementwise/binary
fn apply_remainder_whole(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let found = whole_division(bitcast<vec4<u32>>(a), bitcast<vec4<u32>>(b));
    return bitcast<vec4<Value>>(found.rest);
}

// y = a to the power of b value by value, with broadcasting.
// @import lib/numeric/power
// @import lib/elementwise/binary
fn apply_power(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return power_of(a, b);
}

// y = a to the power of b modulo the range of the type, integers, with broadcasting; 0 for a fraction.
// @import lib/elementwise/binary
const SIGNED: bool = true;
fn apply_power_whole(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    var power = vec4<u32>(1u);
    var square = bitcast<vec4<u32>>(a);
    let left = bitcast<vec4<u32>>(b);
    // @unroll
    for (var bit = 0u; bit < 32u; bit++) {
        power *= select(vec4<u32>(1u), square, (left & vec4<u32>(1u << bit)) != vec4<u32>(0u));
        square *= square;
    }
    // A fraction is left of all but 1 and -1, whose powers repeat.
    let below = vec4<bool>(SIGNED) & (left > vec4<u32>(0x7fffffffu));
    let base = bitcast<vec4<u32>>(a);
    let one = (base == vec4<u32>(1u)) | (base == vec4<u32>(0xffffffffu));
    return bitcast<vec4<Value>>(select(power, vec4<u32>(0u), below & !one));
}

// y = the larger of a and b value by value, NaN where one is NaN, with broadcasting.
// @import lib/elementwise/values
// @import lib/elementwise/binary
fn apply_maximum(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return keep_nan_values(a, keep_nan_values(b, max(a, b)));
}

// y = the smaller of a and b value by value, NaN where one is NaN, with broadcasting.
// @import lib/elementwise/values
// @import lib/elementwise/binary
fn apply_minimum(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return keep_nan_values(a, keep_nan_values(b, min(a, b)));
}

// y = -x, the other sign.
// @import lib/elementwise/values
// @import lib/elementwise/unary
fn apply_neg(x: vec4<Value>) -> vec4<Value> {
    let bits = bitcast<vec4<u32>>(x);
    let other = bits ^ vec4<u32>(0x80000000u);
    return bitcast<vec4<Value>>(select(vec4<u32>(0u) - bits, other, vec4<bool>(FLOAT)));
}

// y = |x|, NaN where x is NaN.
// @import lib/elementwise/values
// @import lib/elementwise/unary
fn apply_abs(x: vec4<Value>) -> vec4<Value> {
    return keep_nan_values(x, abs(x));
}

// y = 1 above zero, -1 below, 0 for zero, NaN where x is NaN.
// @import lib/elementwise/values
// @import lib/elementwise/unary
fn apply_sign(x: vec4<Value>) -> vec4<Value> {
    let zero = vec4<Value>();
    return keep_nan_values(x, vec4<Value>(x > zero) - vec4<Value>(x < zero));
}

// y = x², the square of each value.
// @import lib/elementwise/unary
fn apply_sqr(x: vec4<Value>) -> vec4<Value> {
    return x * x;
}

// y = √x, NaN below zero.
// @import lib/elementwise/unary
fn apply_sqrt(x: vec4<f32>) -> vec4<f32> {
    return sqrt(x);
}

// y = 1 / √x, infinite of zero, NaN below.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary
fn apply_rsqrt(x: vec4<f32>) -> vec4<f32> {
    let zero = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) == vec4<u32>(0u);
    let value = nan_where(is_negative(x), inverseSqrt(x));
    return keep_nan(x, infinite_where(zero, x, value));
}

// y = 1 / x, infinite of zero.
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_reciprocal(x: vec4<f32>) -> vec4<f32> {
    let zero = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) == vec4<u32>(0u);
    return keep_nan(x, infinite_where(zero, x, 1.0 / x));
}
