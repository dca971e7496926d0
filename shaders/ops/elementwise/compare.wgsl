// y = whether a is below, the same as, or above b, value by value, with broadcasting.
// @import lib/key/f32 as key
// @import lib/elementwise/binary

alias Out = f32;   // what says so: 1 or 0
const BELOW: bool = true;
const SAME: bool = false;
const ABOVE: bool = false;
const UNORDERED: bool = false;   // what is said of NaN

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Out> {
    let left = key_of(a);
    let right = key_of(b);
    let below = (left < right) & vec4<bool>(BELOW);
    let same = (left == right) & vec4<bool>(SAME);
    let above = (left > right) & vec4<bool>(ABOVE);
    let numbers = !key_unordered(a) & !key_unordered(b);
    return vec4<Out>(select(vec4<bool>(UNORDERED), below | same | above, numbers));
}
