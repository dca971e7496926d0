// y = x · tanh(log(1 + eˣ)).
// @import lib/numeric/exp
// @import lib/elementwise/unary

fn apply(x: vec4<f32>) -> vec4<f32> {
    // With e = eˣ the tanh is (e² + 2e) / (e² + 2e + 2).
    let e = exp_of(min(x, vec4<f32>(20.0)));
    let above = e * (e + 2.0);
    return keep_nan(x, select(x * (above / (above + 2.0)), x, x > vec4<f32>(20.0)));
}
