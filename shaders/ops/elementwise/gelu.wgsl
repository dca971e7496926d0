// y = GELU(x), the tanh form.
// @import lib/elementwise/unary
// @import lib/numeric/gelu

fn apply(x: vec4<f32>) -> vec4<f32> {
    return gelu_tanh(x);
}
