// Division of 64 bits rounded down, as Python has it; by zero it gives 0 and leaves 0.
// @import lib/numeric/wide_integers

struct WideDivision { quotient: vec2<u32>, rest: vec2<u32> }

// Bit by bit from the first that is set, so that what is left has as many bits as were taken; of numbers
// without sign.
fn wide_long_division(a: vec2<u32>, b: vec2<u32>) -> WideDivision {
    if a.y == 0u && b.y == 0u {
        return WideDivision(vec2<u32>(a.x / b.x, 0u), vec2<u32>(a.x % b.x, 0u));
    }
    let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
    var left = wide_shifted_left(a, zeros);
    var quotient = vec2<u32>(0u);
    var rest = vec2<u32>(0u);
    for (var bit = zeros; bit < 64u; bit++) {
        rest = vec2<u32>((rest.x << 1u) | (left.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
        left = wide_shifted_left(left, 1u);
        let fits = rest.y > b.y || (rest.y == b.y && rest.x >= b.x);
        quotient = wide_shifted_left(quotient, 1u);
        if fits {
            rest = wide_difference(rest, b);
            quotient.x |= 1u;
        }
    }
    return WideDivision(quotient, rest);
}

fn wide_division(a: vec2<u32>, b: vec2<u32>) -> WideDivision {
    let zero = vec2<u32>(0u);
    if all(b == zero) {
        return WideDivision(zero, zero);
    }
    let found = wide_long_division(wide_magnitude(a), wide_magnitude(b));
    let apart = wide_is_negative(a) != wide_is_negative(b);
    var quotient = select(found.quotient, wide_negative(found.quotient), apart);
    var rest = select(found.rest, wide_negative(found.rest), wide_is_negative(a));
    if apart && any(rest != zero) {
        quotient = wide_difference(quotient, vec2<u32>(1u, 0u));
        rest = wide_sum(rest, b);
    }
    return WideDivision(quotient, rest);
}
