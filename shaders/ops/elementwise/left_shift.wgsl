// y = a · 2ᵇ, 0 for b beyond the bits of a, with broadcasting.
// @import lib/elementwise/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let bits = bitcast<vec4<u32>>(a);
    let count = bitcast<vec4<u32>>(b);   // what is negative counts as many
    let shifted = bits << min(count, vec4<u32>(31u));
    return bitcast<vec4<Value>>(select(shifted, vec4<u32>(0u), count > vec4<u32>(31u)));
}
