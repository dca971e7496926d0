// y = max(gate, 0) · up, NaN where one is; `a` is the gate, `b` is up.
// @import lib/numeric/nan
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return keep_nan(a, max(a, vec4<f32>(0.0))) * b;
}
