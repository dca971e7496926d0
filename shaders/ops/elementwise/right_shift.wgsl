// y = a / 2ᵇ rounded down, with broadcasting.
// @import lib/elementwise/binary

const SIGNED: bool = true;

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    let count = min(bitcast<vec4<u32>>(b), vec4<u32>(31u));   // what is negative counts as many
    if SIGNED {
        return bitcast<vec4<Value>>(bitcast<vec4<i32>>(a) >> count);
    }
    let none = bitcast<vec4<u32>>(b) > vec4<u32>(31u);
    return bitcast<vec4<Value>>(select(bitcast<vec4<u32>>(a) >> count, vec4<u32>(0u), none));
}
