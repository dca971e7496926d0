// y = x, at least 0 and at most 6.
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, clamp(x, vec4<f32>(0.0), vec4<f32>(6.0)));
}
