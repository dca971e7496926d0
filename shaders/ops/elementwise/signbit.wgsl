// y = whether the sign of x is set, that of a zero or NaN too.
// @import lib/elementwise/unary

alias Out = f32;   // what says so: 1 or 0

fn apply(x: vec4<f32>) -> vec4<Out> {
    return vec4<Out>(bitcast<vec4<u32>>(x) > vec4<u32>(0x7fffffffu));
}
