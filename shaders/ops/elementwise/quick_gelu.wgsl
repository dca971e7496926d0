// y = x · sigmoid(1.702 x).
// @import lib/elementwise/unary
// @import lib/numeric/gelu

fn apply(x: vec4<f32>) -> vec4<f32> {
    return gelu_sigmoid(x);
}
