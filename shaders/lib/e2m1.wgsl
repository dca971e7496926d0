// FP4 numbers, a sign, two bits of exponent and one of mantissa: ±0, 1, 2, 3, 4, 6, 8, 12, doubled
// so that they are whole.

// Numbers that four quants, a byte each, stand for.
fn e2m1_numbers(quants: u32) -> vec4<f32> {
    let q = unpack4xU8(quants);
    let m = vec4<i32>(q & vec4<u32>(7u));
    let zero = vec4<i32>(0);
    let magnitude = m + max(m - 4, zero) + 2 * max(m - 6, zero);
    // Negated as an integer: there is no negative zero.
    return vec4<f32>(select(magnitude, -magnitude, q >= vec4<u32>(8u)));
}
