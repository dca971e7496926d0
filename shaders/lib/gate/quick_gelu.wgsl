// The activation of a gated product: quick_gelu.
// @import lib/numeric/gelu

fn buf_act(x: f32) -> f32 {
    return gelu_sigmoid(vec4<f32>(x)).x;
}
