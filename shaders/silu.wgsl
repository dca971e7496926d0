// y = x · sigmoid(x).
// @import lib/unary
// @import lib/silu

fn apply(x: vec4<f32>) -> vec4<f32> {
    return silu(x);
}
