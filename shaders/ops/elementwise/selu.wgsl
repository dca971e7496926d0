// y = 1.0507 x above zero, 1.0507 · 1.6733 (eˣ - 1) below.
// @import lib/numeric/exp
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let below = 1.7580993408473766 * expm1_of(min(x, vec4<f32>(0.0)));
    return keep_nan(x, select(below, 1.0507009873554805 * x, x > vec4<f32>(0.0)));
}
