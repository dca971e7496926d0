// y = max(x, 0)².
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let positive = max(x, vec4<f32>(0.0));
    return keep_nan(x, positive * positive);
}
