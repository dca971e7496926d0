// y = x above zero, alpha · (e^(x / alpha) - 1) below.
// @import lib/numeric/exp
// @import lib/elementwise/unary_with_number as alpha

fn apply(x: vec4<f32>, alpha: f32) -> vec4<f32> {
    let below = alpha * expm1_of(min(x, vec4<f32>(0.0)) / alpha);
    return keep_nan(x, select(below, x, x > vec4<f32>(0.0)));
}
