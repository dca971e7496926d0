// y = silu(gate) · up; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/silu

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return silu(a) * b;
}
