// The activation of a gated product: gelu_erf.
// @import lib/numeric/gelu

fn buf_act(x: f32) -> f32 {
    return gelu_error(vec4<f32>(x)).x;
}
