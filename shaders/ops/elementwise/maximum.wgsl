// y = the larger of a and b value by value, NaN where one is NaN, with broadcasting.
// @import lib/elementwise/values
// @import lib/elementwise/binary

fn apply(a: vec4<Value>, b: vec4<Value>) -> vec4<Value> {
    return keep_nan_values(a, keep_nan_values(b, max(a, b)));
}
