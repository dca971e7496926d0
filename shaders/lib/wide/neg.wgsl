// First operand with the other sign.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return wide_negative(a);
}
