// y = tanh(x).
// @import lib/elementwise/unary
// @import lib/numeric/tanh

fn apply(x: vec4<f32>) -> vec4<f32> {
    return safe_tanh(x);
}
