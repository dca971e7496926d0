// y = logarithm of x to base 10.
// @import lib/numeric/log
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let parts = halved(x);
    // log10 2 in two numbers, the first of so few bits that its multiples are exact.
    let rest = 0.4342944819032518 * log_of_rest(parts.rest) + parts.exponent * 4.605038981e-6;
    return log_ends(x, rest + parts.exponent * 0.301025390625);
}
