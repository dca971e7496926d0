// y = a / b rounded down, with broadcasting.
// @import lib/numeric/remainder
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return floored_quotient(a, b);
}
