// y = x · min(max(x + 3, 0), 6) / 6; 0 below -3, x above 3.
// @import lib/numeric/nan
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let middle = x * (x + 3.0) / 6.0;
    let above = select(middle, x, x >= vec4<f32>(3.0));
    return keep_nan(x, select(above, vec4<f32>(0.0), x <= vec4<f32>(-3.0)));
}
