// Bitwise operations and shifts, one function for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = the bits of both, with broadcasting.
// @import lib/elementwise/binary
fn apply_bitwise_and(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(bitcast<vec4<u32>>(a) & bitcast<vec4<u32>>(b));
}

// y = the bits of either, with broadcasting.
// @import lib/elementwise/binary
fn apply_bitwise_or(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(bitcast<vec4<u32>>(a) | bitcast<vec4<u32>>(b));
}

// y = the bits of one of them, with broadcasting.
// @import lib/elementwise/binary
fn apply_bitwise_xor(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(bitcast<vec4<u32>>(a) ^ bitcast<vec4<u32>>(b));
}

// y = the bits that x does not have.
// @import lib/elementwise/unary
fn apply_bitwise_not(x: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(~bitcast<vec4<u32>>(x));
}

// y = a · 2ᵇ, 0 for b beyond the bits of a, with broadcasting.
// @import lib/elementwise/binary
fn apply_left_shift(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let bits = bitcast<vec4<u32>>(a);
    let count = bitcast<vec4<u32>>(b);   // what is negative counts as many
    let shifted = bits << min(count, vec4<u32>(31u));
    return bitcast<vec4<Value>>(select(shifted, vec4<u32>(0u), count > vec4<u32>(31u)));
}

// y = a / 2ᵇ rounded down, with broadcasting.
// @import lib/elementwise/binary
const SIGNED: bool = true;
fn apply_right_shift(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let count = min(bitcast<vec4<u32>>(b), vec4<u32>(31u));   // what is negative counts as many
    if SIGNED {
        return bitcast<vec4<Value>>(bitcast<vec4<i32>>(a) >> count);
    }
    let none = bitcast<vec4<u32>>(b) > vec4<u32>(31u);
    return bitcast<vec4<Value>>(select(bitcast<vec4<u32>>(a) >> count, vec4<u32>(0u), none));
}
