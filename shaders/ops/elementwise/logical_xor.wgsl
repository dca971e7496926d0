// y = whether one of a and b is true, value by value, with broadcasting.
// @import lib/elementwise/binary

alias Out = f32;   // what says so: 1 or 0

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(a) ^ vec4<u32>(b));
}
