// The activation of a gated product: gelu.
// @import lib/numeric/gelu

fn buf_act(x: f32) -> f32 {
    return gelu_tanh(vec4<f32>(x)).x;
}
