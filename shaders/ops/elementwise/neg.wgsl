// y = -x, the other sign.
// @import lib/elementwise/values
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    let bits = bitcast<vec4<u32>>(x);
    let other = bits ^ vec4<u32>(0x80000000u);
    return bitcast<vec4<Value>>(select(vec4<u32>(0u) - bits, other, vec4<bool>(FLOAT)));
}
