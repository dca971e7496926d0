// y = max(x, 0).
// @import lib/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return max(x, vec4<f32>(0.0));
}
