// y = a to the power of b value by value, with broadcasting.
// @import lib/numeric/power
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return power_of(a, b);
}
