// y = x², the square of each value.
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    return x * x;
}
