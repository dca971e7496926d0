// y = a modulo b with the sign of b, with broadcasting.
// @import lib/numeric/remainder
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return floored_rest(a, b);
}
