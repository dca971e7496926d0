// y = eˣ, the exponential function.
// @import lib/numeric/exp
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return exp_of(x);
}
