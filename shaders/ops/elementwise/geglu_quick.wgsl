// y = gate · sigmoid(1.702 gate) · up; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/gelu

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return gelu_sigmoid(a) * b;
}
