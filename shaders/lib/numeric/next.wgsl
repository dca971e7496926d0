// Neighbours of floats, by their bits.
// @import lib/numeric/nan
// @import lib/numeric/sign

const HALF: bool = false;   // whether the numbers are those of f16, which f32 has all of
const LEAST_HALF: f32 = 5.9604645e-8;   // 2⁻²⁴, the step of f16 below 2⁻¹⁴

// Keys that compare as integers in the order of the values.
fn order_of(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    return select(bits | vec4<u32>(0x80000000u), ~bits, bits > vec4<u32>(0x80000000u));
}

fn farther(magnitude: vec4<u32>) -> vec4<u32> {
    if HALF {
        let small = bitcast<vec4<u32>>(bitcast<vec4<f32>>(magnitude) + LEAST_HALF);
        return select(magnitude + vec4<u32>(0x2000u), small, magnitude < vec4<u32>(0x38800000u));
    }
    return magnitude + vec4<u32>(1u);
}

fn nearer(magnitude: vec4<u32>) -> vec4<u32> {
    if HALF {
        let small = bitcast<vec4<u32>>(bitcast<vec4<f32>>(magnitude) - LEAST_HALF);
        let below = select(magnitude - vec4<u32>(0x2000u), small, magnitude <= vec4<u32>(0x38800000u));
        let infinite = magnitude == vec4<u32>(0x7f800000u);
        return select(below, vec4<u32>(0x477fe000u), infinite);
    }
    return magnitude - vec4<u32>(1u);
}

fn next_number(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(a);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let zero = magnitude == vec4<u32>(0u);
    let up = order_of(b) > order_of(a);
    // From zero, every way leads farther away.
    let away = zero | (up != is_negative(a));
    let stepped = select(nearer(magnitude), farther(magnitude), away);
    let negative = select(is_negative(a), !up, zero);
    let found = stepped | select(vec4<u32>(0u), vec4<u32>(0x80000000u), negative);
    let same = order_of(a) == order_of(b);
    let value = bitcast<vec4<f32>>(select(found, bitcast<vec4<u32>>(b), same));
    return keep_nan(a, keep_nan(b, value));
}
