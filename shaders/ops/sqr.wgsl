// y = x², the square of each value.
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return x * x;
}
