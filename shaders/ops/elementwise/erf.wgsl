// y = error function of x.
// @import lib/numeric/error
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    return error_function(x);
}
