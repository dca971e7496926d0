// y = 1 / √x, infinite of zero, NaN below.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let zero = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) == vec4<u32>(0u);
    let value = nan_where(is_negative(x), inverseSqrt(x));
    return keep_nan(x, infinite_where(zero, x, value));
}
