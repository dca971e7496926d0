// Power of 64 bits; 0 for a fraction, which all but 1 and -1 have of an exponent below zero.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let one = vec2<u32>(1u, 0u);
    let repeats = all(a == one) || all(a == vec2<u32>(0xffffffffu));
    if wide_is_negative(b) && !repeats {
        return vec2<u32>(0u);
    }
    var power = one;
    var square = a;
    var left = b;
    while any(left != vec2<u32>(0u)) {
        if (left.x & 1u) == 1u {
            power = wide_product(power, square);
        }
        square = wide_product(square, square);
        left = vec2<u32>((left.x >> 1u) | (left.y << 31u), left.y >> 1u);
    }
    return power;
}
