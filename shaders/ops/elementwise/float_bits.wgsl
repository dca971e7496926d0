// Tests and changes of the bits of floats, one function for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = whether x is not a number, by its bits.
// @import lib/elementwise/unary
alias Out = f32;   // what says so: 1 or 0
fn apply_isnan(x: vec4<f32>) -> vec4<Out> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return vec4<Out>(magnitude > vec4<u32>(0x7f800000u));
}

// y = whether x is infinite, by its bits.
// @import lib/elementwise/unary
alias Out = f32;   // what says so: 1 or 0
fn apply_isinf(x: vec4<f32>) -> vec4<Out> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return vec4<Out>(magnitude == vec4<u32>(0x7f800000u));
}

// y = whether x is neither infinite nor NaN, by its bits.
// @import lib/elementwise/unary
alias Out = f32;   // what says so: 1 or 0
fn apply_isfinite(x: vec4<f32>) -> vec4<Out> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return vec4<Out>(magnitude < vec4<u32>(0x7f800000u));
}

// y = whether the sign of x is set, that of a zero or NaN too.
// @import lib/elementwise/unary
alias Out = f32;   // what says so: 1 or 0
fn apply_signbit(x: vec4<f32>) -> vec4<Out> {
    return vec4<Out>(bitcast<vec4<u32>>(x) > vec4<u32>(0x7fffffffu));
}

// y = |a| with the sign of b, with broadcasting.
// @import lib/numeric/sign
// @import lib/elementwise/binary
fn apply_copysign(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return with_sign_of(b, a);
}

// y = the number next to a in the direction of b, with broadcasting.
// @import lib/numeric/next
// @import lib/elementwise/binary
fn apply_nextafter(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return next_number(a, b);
}
