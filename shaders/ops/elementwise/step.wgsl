// y = 1 above a threshold, else 0.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as threshold

fn apply(x: vec4<f32>, threshold: f32) -> vec4<f32> {
    let zero = vec4<f32>(0.0);
    let above = select(zero, vec4<f32>(1.0), x > vec4<f32>(threshold));
    let number = bitcast<vec4<u32>>(keep_nan(x, zero)) == vec4<u32>(0u);
    return select(zero, above, number);
}
