// The three forms of GELU: by tanh, by the error function, by a sigmoid.

// (1 + tanh(u)) / 2 is written as 1 / (1 + exp(-2u)), which does not cancel for negative numbers.
fn gelu_tanh(x: vec4<f32>) -> vec4<f32> {
    let inner = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x);
    return x / (1.0 + exp(-2.0 * inner));
}

// Abramowitz & Stegun 7.1.26 is too coarse (1.5e-7 absolute is 1e-3 of small results), so: the
// series around zero, and the continued fraction's rational fit beyond.
fn erf_series(x: vec4<f32>) -> vec4<f32> {
    let x2 = x * x;
    var term = x;
    var sum = x;
    // @unroll
    for (var n = 1u; n < 14u; n++) {
        term = term * (-x2) / f32(n);
        sum = sum + term / f32(2u * n + 1u);
    }
    return 1.1283791670955126 * sum;
}

fn erfc_tail(x: vec4<f32>) -> vec4<f32> {
    let t = 1.0 / (1.0 + 0.5 * x);
    let p = t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807
        + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    return t * exp(-x * x - 1.26551223 + p);
}

fn gelu_error(x: vec4<f32>) -> vec4<f32> {
    let z = x * 0.7071067811865476;
    let a = abs(z);
    let tail = erfc_tail(a);
    let far = select(tail, 2.0 - tail, z > vec4<f32>(0.0));
    return 0.5 * x * select(far, 1.0 + erf_series(z), a < vec4<f32>(1.5));
}

fn gelu_sigmoid(x: vec4<f32>) -> vec4<f32> {
    return x / (1.0 + exp(-1.702 * x));
}
