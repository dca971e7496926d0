// y = tanh(x).
// @import lib/unary
// @import lib/tanh

fn apply(x: vec4<f32>) -> vec4<f32> {
    return safe_tanh(x);
}
