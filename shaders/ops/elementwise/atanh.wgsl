// y = number whose tanh is x, NaN beyond ±1.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return area_tangent(x);
}
