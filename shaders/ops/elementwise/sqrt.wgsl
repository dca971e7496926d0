// y = √x, NaN below zero.
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return sqrt(x);
}
