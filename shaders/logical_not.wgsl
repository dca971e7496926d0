// y = whether x is false, value by value.
// @import lib/unary

fn apply(x: vec4<Value>) -> vec4<u32> {
    return vec4<u32>(1u) - vec4<u32>(x);
}
