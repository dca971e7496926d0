// y = whether x is not a number, by its bits.
// @import lib/elementwise/unary

alias Out = f32;   // what says so: 1 or 0

fn apply(x: vec4<f32>) -> vec4<Out> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return vec4<Out>(magnitude > vec4<u32>(0x7f800000u));
}
