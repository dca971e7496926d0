// y = 1 above zero, -1 below, 0 for zero, NaN where x is NaN.
// @import lib/elementwise/values
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    let zero = vec4<Value>();
    return keep_nan_values(x, vec4<Value>(x > zero) - vec4<Value>(x < zero));
}
