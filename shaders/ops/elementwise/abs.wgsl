// y = |x|, NaN where x is NaN.
// @import lib/elementwise/values
// @import lib/elementwise/unary

fn apply(x: vec4<Value>) -> vec4<Value> {
    return keep_nan_values(x, abs(x));
}
