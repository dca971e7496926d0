// y = x / 6 + 1/2, at least 0 and at most 1.
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, clamp((x + 3.0) / 6.0, vec4<f32>(0.0), vec4<f32>(1.0)));
}
