// y = angle of the point (b, a), as C's atan2(a, b), with broadcasting.
// @import lib/numeric/arcs
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return arc_of_point(a, b);
}
