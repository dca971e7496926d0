// y = whether x is false, value by value.
// @import lib/elementwise/unary

alias Out = f32;   // what says so: 1 or 0

fn apply(x: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(1u) - vec4<u32>(x));
}
