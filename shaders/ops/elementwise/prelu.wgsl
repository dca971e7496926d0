// y = a above zero, a times a weight b below, with broadcasting.
// @import lib/numeric/nan
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return keep_nan(a, select(b * a, a, a > vec4<f32>(0.0)));
}
