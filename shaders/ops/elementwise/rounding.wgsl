// Rounding to whole numbers, one function for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = largest whole number up to x, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary
fn apply_floor(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, floor(x)));
}

// y = smallest whole number from x on, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary
fn apply_ceil(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, ceil(x)));
}

// y = x without its fraction, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary
fn apply_trunc(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, trunc(x)));
}

// y = whole number nearest to x, the even one of two, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary
fn apply_round(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, round(x)));
}
