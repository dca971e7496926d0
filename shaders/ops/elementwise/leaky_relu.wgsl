// y = x above zero, x times a slope below.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as negative_slope

fn apply(x: vec4<f32>, negative_slope: f32) -> vec4<f32> {
    return keep_nan(x, select(negative_slope * x, x, x > vec4<f32>(0.0)));
}
