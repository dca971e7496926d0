// y = x, but 0 where |x| is at most a bound.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as lambd

fn apply(x: vec4<f32>, lambd: f32) -> vec4<f32> {
    return keep_nan(x, select(vec4<f32>(0.0), x, abs(x) > vec4<f32>(lambd)));
}
