// Quotients rounded to nearest whatever the driver: WGSL lets a division be off by 2.5 units.

// a / b, by long division of the mantissas; as WGSL has it where one of the three is no normal number.
fn exact_ratio(a: f32, b: f32) -> f32 {
    let of_a = (bitcast<u32>(a) >> 23u) & 0xffu;
    let of_b = (bitcast<u32>(b) >> 23u) & 0xffu;
    let divisor = (bitcast<u32>(b) & 0x7fffffu) | 0x800000u;
    var rest = (bitcast<u32>(a) & 0x7fffffu) | 0x800000u;
    let less = u32(rest < divisor);
    let exponent = of_a + 127u - of_b - less;   // below zero it wraps around
    if of_a - 1u >= 254u || of_b - 1u >= 254u || exponent - 1u >= 253u {
        return a / b;
    }
    rest = (rest << less) - divisor;
    var quotient = 1u;
    for (var left = 23u; left > 0u;) {
        let count = min(left, 8u);
        rest = rest << count;
        quotient = (quotient << count) | (rest / divisor);
        rest = rest % divisor;
        left -= count;
    }
    quotient += u32(2u * rest > divisor);       // of 24 bits each, none is half a unit
    let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
    return bitcast<f32>(sign | ((exponent << 23u) + (quotient - 0x800000u)));
}
