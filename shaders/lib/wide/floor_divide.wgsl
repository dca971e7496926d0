// Quotient of 64 bits, rounded down.
// @import lib/numeric/wide_division

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return wide_division(a, b).quotient;
}
