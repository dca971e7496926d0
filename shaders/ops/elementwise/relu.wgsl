// y = max(x, 0), NaN where x is NaN.
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, max(x, vec4<f32>(0.0)));
}
