// y = log(1 + x), without cancellation near zero.
// @import lib/numeric/log1p
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return log1p_of(x);
}
