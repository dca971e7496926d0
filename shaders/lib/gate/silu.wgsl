// The activation of a gated product: silu.
// @import lib/numeric/silu

fn buf_act(x: f32) -> f32 {
    return silu(vec4<f32>(x)).x;
}
