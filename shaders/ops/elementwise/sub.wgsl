// y = a - b, with broadcasting.
// @import lib/elementwise/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return a - b;
}
