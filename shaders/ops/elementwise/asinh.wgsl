// y = number whose sinh is x.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return area_sine(x);
}
