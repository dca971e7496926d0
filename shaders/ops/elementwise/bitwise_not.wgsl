// y = the bits that x does not have.
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    return bitcast<vec4<Value>>(~bitcast<vec4<u32>>(x));
}
