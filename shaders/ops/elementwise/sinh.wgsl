// y = (eˣ - e⁻ˣ) / 2.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return hyperbolic_sine(x);
}
