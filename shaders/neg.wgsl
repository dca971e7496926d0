// y = -x, the other sign.
// @import lib/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return -x;
}
