// y = tan x, x in radians.
// @import lib/numeric/tangent
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return tangent(x);
}
