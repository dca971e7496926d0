// y = GELU(x), by the error function.
// @import lib/elementwise/unary
// @import lib/numeric/gelu

fn apply(x: vec4<f32>) -> vec4<f32> {
    return gelu_error(x);
}
