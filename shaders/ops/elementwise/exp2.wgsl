// y = 2ˣ, exact for whole x.
// @import lib/numeric/exp
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    let near = clamp(x, vec4<f32>(-252.0), vec4<f32>(252.0));
    let whole = round(near);
    let rest = expm1_of_rest(0.6931471805599453 * (near - whole));
    return keep_nan(x, scaled(1.0 + rest, whole));
}
