// y = -x, the other sign.
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    return -x;
}
