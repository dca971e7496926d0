// Larger number of 64 bits.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, wide_below(a, b));
}
