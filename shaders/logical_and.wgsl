// y = whether both a and b are true, value by value, with broadcasting.
// @import lib/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<u32> {
    return vec4<u32>(a) & vec4<u32>(b);
}
