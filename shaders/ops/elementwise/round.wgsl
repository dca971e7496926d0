// y = whole number nearest to x, the even one of two, with the sign of x.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, with_sign_of(x, round(x)));
}
