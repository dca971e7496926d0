// Transcendental functions, one for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = eˣ, the exponential function.
// @import lib/numeric/exp
// @import lib/elementwise/unary
fn apply_exp(x: vec4<f32>) -> vec4<f32> {
    return exp_of(x);
}

// y = 2ˣ, exact for whole x.
// @import lib/numeric/exp
// @import lib/elementwise/unary
fn apply_exp2(x: vec4<f32>) -> vec4<f32> {
    let near = clamp(x, vec4<f32>(-252.0), vec4<f32>(252.0));
    let whole = round(near);
    let rest = expm1_of_rest(0.6931471805599453 * (near - whole));
    return keep_nan(x, scaled(1.0 + rest, whole));
}

// y = eˣ - 1, without cancellation near zero.
// @import lib/numeric/exp
// @import lib/elementwise/unary
fn apply_expm1(x: vec4<f32>) -> vec4<f32> {
    return expm1_of(x);
}

// y = natural logarithm of x, -∞ of zero, NaN below.
// @import lib/numeric/log
// @import lib/elementwise/unary
fn apply_log(x: vec4<f32>) -> vec4<f32> {
    return log_of(x);
}

// y = log(1 + x), without cancellation near zero.
// @import lib/numeric/log1p
// @import lib/elementwise/unary
fn apply_log1p(x: vec4<f32>) -> vec4<f32> {
    return log1p_of(x);
}

// y = logarithm of x to base 2, exact for powers of two.
// @import lib/numeric/log
// @import lib/elementwise/unary
fn apply_log2(x: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    let rest = log_of_rest(parts.rest);
    return log_ends(x, parts.exponent + 1.4426950408889634 * rest);
}

// y = logarithm of x to base 10.
// @import lib/numeric/log
// @import lib/elementwise/unary
fn apply_log10(x: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    // log10 2 in two numbers, the first of so few bits that its multiples are exact.
    let rest = 0.4342944819032518 * log_of_rest(parts.rest) + parts.exponent * 4.605038981e-6;
    return log_ends(x, rest + parts.exponent * 0.301025390625);
}

// y = sin x, x in radians.
// @import lib/elementwise/unary
// @import lib/rope/sine
fn apply_sin(x: vec4<f32>) -> vec4<f32> {
    // Small angles are their sines, and zeros keep their signs.
    return select(sine(x, 0u), x, abs(x) < vec4<f32>(1e-4));
}

// y = cos x, x in radians.
// @import lib/elementwise/unary
// @import lib/rope/sine
fn apply_cos(x: vec4<f32>) -> vec4<f32> {
    return sine(x, 1u);
}

// y = tan x, x in radians.
// @import lib/numeric/tangent
// @import lib/elementwise/unary
fn apply_tan(x: vec4<f32>) -> vec4<f32> {
    return tangent(x);
}

// y = angle within ±π/2 whose sine is x, NaN beyond ±1.
// @import lib/numeric/arcs
// @import lib/elementwise/unary
fn apply_asin(x: vec4<f32>) -> vec4<f32> {
    return arc_sine(x);
}

// y = angle from 0 to π whose cosine is x, NaN beyond ±1.
// @import lib/numeric/arcs
// @import lib/elementwise/unary
fn apply_acos(x: vec4<f32>) -> vec4<f32> {
    return arc_cosine(x);
}

// y = angle within ±π/2 whose tangent is x.
// @import lib/numeric/arcs
// @import lib/elementwise/unary
fn apply_atan(x: vec4<f32>) -> vec4<f32> {
    return arc_tangent(x);
}

// y = (eˣ - e⁻ˣ) / 2.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary
fn apply_sinh(x: vec4<f32>) -> vec4<f32> {
    return hyperbolic_sine(x);
}

// y = (eˣ + e⁻ˣ) / 2.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary
fn apply_cosh(x: vec4<f32>) -> vec4<f32> {
    return hyperbolic_cosine(x);
}

// y = number whose sinh is x.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary
fn apply_asinh(x: vec4<f32>) -> vec4<f32> {
    return area_sine(x);
}

// y = number from 0 whose cosh is x, NaN below 1.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary
fn apply_acosh(x: vec4<f32>) -> vec4<f32> {
    return area_cosine(x);
}

// y = number whose tanh is x, NaN beyond ±1.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary
fn apply_atanh(x: vec4<f32>) -> vec4<f32> {
    return area_tangent(x);
}

// y = error function of x.
// @import lib/numeric/error
// @import lib/elementwise/unary
fn apply_erf(x: vec4<f32>) -> vec4<f32> {
    return error_function(x);
}

// y = number whose error function is x, NaN beyond ±1.
// @import lib/numeric/error
// @import lib/elementwise/unary
fn apply_erfinv(x: vec4<f32>) -> vec4<f32> {
    return error_inverse(x);
}

// y = angle of the point (b, a), as C's atan2(a, b), with broadcasting.
// @import lib/numeric/arcs
// @import lib/elementwise/binary
fn apply_atan2(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return arc_of_point(a, b);
}

// y = √(a² + b²) without overflow, with broadcasting.
// @import lib/numeric/nan
// @import lib/elementwise/binary
fn apply_hypot(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let large = max(abs(a), abs(b));
    // Powers of two, so that squares stay within f32.
    let down = select(vec4<f32>(1.0), vec4<f32>(8.470329472543003e-22), large > vec4<f32>(1e18));
    let factor = select(down, vec4<f32>(1.2676506002282294e30), large < vec4<f32>(1e-18));
    let u = a * factor;
    let v = b * factor;
    let root = keep_nan(a, keep_nan(b, sqrt(u * u + v * v) / factor));
    let a_bits = bitcast<vec4<u32>>(a) & vec4<u32>(0x7fffffffu);
    let b_bits = bitcast<vec4<u32>>(b) & vec4<u32>(0x7fffffffu);
    let infinity = vec4<u32>(0x7f800000u);
    return infinite_where((a_bits == infinity) | (b_bits == infinity), vec4<f32>(1.0), root);
}

// y = log(eᵃ + eᵇ) without overflow, with broadcasting.
// @import lib/numeric/exp
// @import lib/numeric/log1p
// @import lib/elementwise/binary
fn apply_logaddexp(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    // Of equal infinities the difference is no number.
    let apart = select(abs(a - b), vec4<f32>(0.0), a == b);
    return keep_nan(a, keep_nan(b, max(a, b) + log1p_of(exp_of(-apart))));
}
