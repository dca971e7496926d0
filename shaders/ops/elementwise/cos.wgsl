// y = cos x, x in radians.
// @import lib/elementwise/unary
// @import lib/rope/sine

fn apply(x: vec4<f32>) -> vec4<f32> {
    return sine(x, 1u);
}
