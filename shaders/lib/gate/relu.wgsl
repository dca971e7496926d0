// The activation of a gated product: relu.
// @import lib/numeric/nan

fn buf_act(x: f32) -> f32 {
    return keep_nan_of(x, max(x, 0.0));
}
