// tanh by exp of a negative number: some drivers' own overflows to NaN beyond 44.
// @import lib/numeric/exp
// @import lib/numeric/sign

fn safe_tanh(x: vec4<f32>) -> vec4<f32> {
    let lost = expm1_of(-2.0 * abs(x));
    return keep_nan(x, with_sign_of(x, lost / (2.0 + lost)));
}
