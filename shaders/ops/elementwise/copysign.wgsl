// y = |a| with the sign of b, with broadcasting.
// @import lib/numeric/sign
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return with_sign_of(b, a);
}
