// y = logarithm of x to base 2, exact for powers of two.
// @import lib/numeric/log
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    let rest = log_of_rest(parts.rest);
    return log_ends(x, parts.exponent + 1.4426950408889634 * rest);
}
