// y = x · sigmoid(x).
// @import lib/elementwise/unary
// @import lib/numeric/silu

fn apply(x: vec4<f32>) -> vec4<f32> {
    return silu(x);
}
