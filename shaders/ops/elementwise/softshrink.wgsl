// y = x moved towards zero by a bound, 0 where |x| is at most that.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary_with_number as lambd

fn apply(x: vec4<f32>, lambd: f32) -> vec4<f32> {
    let rest = max(abs(x) - lambd, vec4<f32>(0.0));
    return keep_nan(x, select(vec4<f32>(0.0), with_sign_of(x, rest), rest > vec4<f32>(0.0)));
}
