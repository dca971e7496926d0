// Activations, one function for each op, and gated activations, whose `a` is the gate.
// An op's kernel has the block of its own function alone, which is then called `apply`.

// y = max(x, 0), NaN where x is NaN.
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_relu(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, max(x, vec4<f32>(0.0)));
}

// y = x, at least 0 and at most 6.
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_relu6(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, clamp(x, vec4<f32>(0.0), vec4<f32>(6.0)));
}

// y = max(x, 0)².
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_relu_squared(x: vec4<f32>) -> vec4<f32> {
    let positive = max(x, vec4<f32>(0.0));
    return keep_nan(x, positive * positive);
}

// y = x above zero, x times a slope below.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as negative_slope
fn apply_leaky_relu(x: vec4<f32>, negative_slope: f32) -> vec4<f32> {
    return keep_nan(x, select(negative_slope * x, x, x > vec4<f32>(0.0)));
}

// y = a above zero, a times a weight b below, with broadcasting.
// @import lib/numeric/nan
// @import lib/elementwise/binary
fn apply_prelu(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return keep_nan(a, select(b * a, a, a > vec4<f32>(0.0)));
}

// y = x above zero, alpha · (eˣ - 1) below.
// @import lib/numeric/exp
// @import lib/elementwise/unary_with_number as alpha
fn apply_elu(x: vec4<f32>, alpha: f32) -> vec4<f32> {
    let below = alpha * expm1_of(min(x, vec4<f32>(0.0)));
    return keep_nan(x, select(below, x, x > vec4<f32>(0.0)));
}

// y = x above zero, alpha · (e^(x / alpha) - 1) below.
// @import lib/numeric/exp
// @import lib/elementwise/unary_with_number as alpha
fn apply_celu(x: vec4<f32>, alpha: f32) -> vec4<f32> {
    let below = alpha * expm1_of(min(x, vec4<f32>(0.0)) / alpha);
    return keep_nan(x, select(below, x, x > vec4<f32>(0.0)));
}

// y = 1.0507 x above zero, 1.0507 · 1.6733 (eˣ - 1) below.
// @import lib/numeric/exp
// @import lib/elementwise/unary
fn apply_selu(x: vec4<f32>) -> vec4<f32> {
    let below = 1.7580993408473766 * expm1_of(min(x, vec4<f32>(0.0)));
    return keep_nan(x, select(below, 1.0507009873554805 * x, x > vec4<f32>(0.0)));
}

// y = 1 / (1 + exp(-x)).
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_sigmoid(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, 1.0 / (1.0 + exp(-x)));
}

// y = x / 6 + 1/2, at least 0 and at most 1.
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_hardsigmoid(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, clamp((x + 3.0) / 6.0, vec4<f32>(0.0), vec4<f32>(1.0)));
}

// y = log(1 / (1 + e⁻ˣ)), without overflow or cancellation.
// @import lib/numeric/exp
// @import lib/numeric/log1p
// @import lib/elementwise/unary
fn apply_log_sigmoid(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, min(x, vec4<f32>(0.0)) - log1p_of(exp_of(-abs(x))));
}

// y = log(1 + eˣ), without overflow for large x and without cancellation for small eˣ.
// @import lib/elementwise/unary
fn apply_softplus(x: vec4<f32>) -> vec4<f32> {
    let e = exp(-abs(x));
    // log(1 + e) = 2 artanh(s), s at most a third: a driver's log may be off by 1e-6 near one.
    let s = e / (2.0 + e);
    let t = s * s;
    let tail = 1.0 / 7.0 + t * (1.0 / 9.0 + t * (1.0 / 11.0 + t * (1.0 / 13.0)));
    let series = 1.0 + t * (1.0 / 3.0 + t * (1.0 / 5.0 + t * tail));
    return select(vec4<f32>(0.0), x, x > vec4<f32>(0.0)) + 2.0 * s * series;
}

// y = x · sigmoid(x).
// @import lib/elementwise/unary
// @import lib/numeric/silu
fn apply_silu(x: vec4<f32>) -> vec4<f32> {
    return silu(x);
}

// y = x · min(max(x + 3, 0), 6) / 6; 0 below -3, x above 3.
// @import lib/numeric/nan
// @import lib/elementwise/unary
fn apply_hardswish(x: vec4<f32>) -> vec4<f32> {
    let middle = x * (x + 3.0) / 6.0;
    let above = select(middle, x, x >= vec4<f32>(3.0));
    return keep_nan(x, select(above, vec4<f32>(0.0), x <= vec4<f32>(-3.0)));
}

// y = x · tanh(log(1 + eˣ)).
// @import lib/numeric/exp
// @import lib/elementwise/unary
fn apply_mish(x: vec4<f32>) -> vec4<f32> {
    // With e = eˣ the tanh is (e² + 2e) / (e² + 2e + 2).
    let e = exp_of(min(x, vec4<f32>(20.0)));
    let above = e * (e + 2.0);
    return keep_nan(x, select(x * (above / (above + 2.0)), x, x > vec4<f32>(20.0)));
}

// y = GELU(x), the tanh form.
// @import lib/elementwise/unary
// @import lib/numeric/gelu
fn apply_gelu(x: vec4<f32>) -> vec4<f32> {
    return gelu_tanh(x);
}

// y = GELU(x), by the error function.
// @import lib/elementwise/unary
// @import lib/numeric/gelu
fn apply_gelu_erf(x: vec4<f32>) -> vec4<f32> {
    return gelu_error(x);
}

// y = x · sigmoid(1.702 x).
// @import lib/elementwise/unary
// @import lib/numeric/gelu
fn apply_quick_gelu(x: vec4<f32>) -> vec4<f32> {
    return gelu_sigmoid(x);
}

// y = tanh(x).
// @import lib/elementwise/unary
// @import lib/numeric/tanh
fn apply_tanh(x: vec4<f32>) -> vec4<f32> {
    return safe_tanh(x);
}

// y = x / (1 + |x|).
// @import lib/numeric/nan
// @import lib/numeric/divided
// @import lib/elementwise/unary
fn apply_softsign(x: vec4<f32>) -> vec4<f32> {
    return keep_nan(x, divided(x, 1.0 + abs(x)));
}

// y = x, but 0 where |x| is at most a bound.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as lambd
fn apply_hard_shrink(x: vec4<f32>, lambd: f32) -> vec4<f32> {
    return keep_nan(x, select(vec4<f32>(0.0), x, abs(x) > vec4<f32>(lambd)));
}

// y = x moved towards zero by a bound, 0 where |x| is at most that.
// @import lib/numeric/nan
// @import lib/numeric/sign
// @import lib/elementwise/unary_with_number as lambd
fn apply_softshrink(x: vec4<f32>, lambd: f32) -> vec4<f32> {
    let rest = max(abs(x) - lambd, vec4<f32>(0.0));
    return keep_nan(x, select(vec4<f32>(0.0), with_sign_of(x, rest), rest > vec4<f32>(0.0)));
}

// y = 1 above a threshold, else 0.
// @import lib/numeric/nan
// @import lib/elementwise/unary_with_number as threshold
fn apply_step(x: vec4<f32>, threshold: f32) -> vec4<f32> {
    let zero = vec4<f32>(0.0);
    let above = select(zero, vec4<f32>(1.0), x > vec4<f32>(threshold));
    let number = bitcast<vec4<u32>>(keep_nan(x, zero)) == vec4<u32>(0u);
    return select(zero, above, number);
}

// y = silu(gate) · up; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/silu
fn apply_swiglu(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return silu(a) * b;
}

// y = GELU(gate) · up, the tanh form; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/gelu
fn apply_geglu(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return gelu_tanh(a) * b;
}

// y = GELU(gate) · up, by the error function; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/gelu
fn apply_geglu_erf(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return gelu_error(a) * b;
}

// y = gate · sigmoid(1.702 gate) · up; `a` is the gate, `b` is up.
// @import lib/elementwise/binary
// @import lib/numeric/gelu
fn apply_geglu_quick(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return gelu_sigmoid(a) * b;
}

// y = max(gate, 0) · up, NaN where one is; `a` is the gate, `b` is up.
// @import lib/numeric/nan
// @import lib/elementwise/binary
fn apply_reglu(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return keep_nan(a, max(a, vec4<f32>(0.0))) * b;
}
