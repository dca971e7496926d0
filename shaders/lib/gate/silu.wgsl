// What the gate of a product goes through: silu.
// @import lib/numeric/silu

fn buf_act(x: f32) -> f32 {
    return silu(vec4<f32>(x)).x;
}
