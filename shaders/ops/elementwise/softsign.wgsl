// y = x / (1 + |x|).
// @import lib/numeric/nan
// @import lib/numeric/divided
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, divided(x, 1.0 + abs(x)));
}
