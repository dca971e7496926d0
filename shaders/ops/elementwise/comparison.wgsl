// Comparisons and logical operations, one function for each op.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = whether a is below, the same as, or above b, value by value, with broadcasting.
// @import lib/key/f32 as key
// @import lib/elementwise/binary
alias Out = f32;   // what says so: 1 or 0
const BELOW: bool = true;
const SAME: bool = false;
const ABOVE: bool = false;
const UNORDERED: bool = false;   // what is said of NaN
fn apply_compare(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    let left = key_of(a);
    let right = key_of(b);
    let below = (left < right) & vec4<bool>(BELOW);
    let same = (left == right) & vec4<bool>(SAME);
    let above = (left > right) & vec4<bool>(ABOVE);
    let numbers = !key_unordered(a) & !key_unordered(b);
    return vec4<Out>(select(vec4<bool>(UNORDERED), below | same | above, numbers));
}

// y = whether both a and b are true, value by value, with broadcasting.
// @import lib/elementwise/binary
alias Out = f32;   // what says so: 1 or 0
fn apply_logical_and(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(a) & vec4<u32>(b));
}

// y = whether a or b is true, value by value, with broadcasting.
// @import lib/elementwise/binary
alias Out = f32;   // what says so: 1 or 0
fn apply_logical_or(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(a) | vec4<u32>(b));
}

// y = whether one of a and b is true, value by value, with broadcasting.
// @import lib/elementwise/binary
alias Out = f32;   // what says so: 1 or 0
fn apply_logical_xor(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(a) ^ vec4<u32>(b));
}

// y = whether x is false, value by value.
// @import lib/elementwise/unary
alias Out = f32;   // what says so: 1 or 0
fn apply_logical_not(x: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(vec4<u32>(1u) - vec4<u32>(x));
}
