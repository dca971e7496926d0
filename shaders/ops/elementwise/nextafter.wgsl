// y = the number next to a in the direction of b, with broadcasting.
// @import lib/numeric/next
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return next_number(a, b);
}
