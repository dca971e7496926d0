// y = 1 / (1 + exp(-x)).
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, 1.0 / (1.0 + exp(-x)));
}
