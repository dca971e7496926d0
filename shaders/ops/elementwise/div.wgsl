// y = a / b value by value, with broadcasting.
// @import lib/numeric/divided
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return divided(a, b);
}
