// y = log(eᵃ + eᵇ) without overflow, with broadcasting.
// @import lib/numeric/exp
// @import lib/numeric/log1p
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    // Of equal infinities the difference is no number.
    let apart = select(abs(a - b), vec4<f32>(0.0), a == b);
    return keep_nan(a, keep_nan(b, max(a, b) + log1p_of(exp_of(-apart))));
}
