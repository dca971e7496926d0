// y = number whose error function is x, NaN beyond ±1.
// @import lib/numeric/error
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return error_inverse(x);
}
