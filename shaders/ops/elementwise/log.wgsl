// y = natural logarithm of x, -∞ of zero, NaN below.
// @import lib/numeric/log
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return log_of(x);
}
