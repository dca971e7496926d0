// y = number from 0 whose cosh is x, NaN below 1.
// @import lib/numeric/hyperbolic
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return area_cosine(x);
}
