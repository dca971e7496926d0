// y = max(gate, 0) · up; `a` is the gate, `b` is up.
// @import lib/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return max(a, vec4<f32>(0.0)) * b;
}
