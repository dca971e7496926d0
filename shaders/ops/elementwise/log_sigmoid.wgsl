// y = log(1 / (1 + e⁻ˣ)), without overflow or cancellation.
// @import lib/numeric/exp
// @import lib/numeric/log1p
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, min(x, vec4<f32>(0.0)) - log1p_of(exp_of(-abs(x))));
}
