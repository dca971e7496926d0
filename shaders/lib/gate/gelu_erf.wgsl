// What the gate of a product goes through: gelu_erf.
// @import lib/numeric/gelu

fn buf_act(x: f32) -> f32 {
    return gelu_error(vec4<f32>(x)).x;
}
