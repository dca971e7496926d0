// y = eˣ - 1, without cancellation near zero.
// @import lib/numeric/exp
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return expm1_of(x);
}
