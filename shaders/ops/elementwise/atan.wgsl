// y = angle within ±π/2 whose tangent is x.
// @import lib/numeric/arcs
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return arc_tangent(x);
}
