// y = the bits of one of them, with broadcasting.
// @import lib/elementwise/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(bitcast<vec4<u32>>(a) ^ bitcast<vec4<u32>>(b));
}
