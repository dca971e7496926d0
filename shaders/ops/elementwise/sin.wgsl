// y = sin x, x in radians.
// @import lib/elementwise/unary
// @import lib/rope/sine

fn apply(x: vec4<f32>) -> vec4<f32> {
    // Small angles are their sines, and zeros keep their signs.
    return select(sine(x, 0u), x, abs(x) < vec4<f32>(1e-4));
}
