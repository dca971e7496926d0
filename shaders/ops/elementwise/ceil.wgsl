// y = smallest whole number from x on, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, ceil(x)));
}
