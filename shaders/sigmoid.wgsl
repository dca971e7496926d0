// y = 1 / (1 + exp(-x)).
// @import lib/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}
