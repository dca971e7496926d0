// Hyperbolic functions and their inverses.
// @import lib/numeric/exp
// @import lib/numeric/log1p
// @import lib/numeric/sign

const LOG_TWO: f32 = 0.6931472;

// Below 1 the series, as the difference of two exponentials cancels.
fn hyperbolic_sine(x: vec4<f32>) -> vec4<f32> {
    let z = x * x;
    let tail = 1.0 / 5040.0 + z * (1.0 / 362880.0 + z * (1.0 / 39916800.0));
    let near = x + x * z * (1.0 / 6.0 + z * (1.0 / 120.0 + z * tail));
    let half = half_exp_of(abs(x));
    let far = with_sign_of(x, half - 0.25 / half);
    return keep_nan(x, select(far, near, abs(x) < vec4<f32>(1.0)));
}

fn hyperbolic_cosine(x: vec4<f32>) -> vec4<f32> {
    let half = half_exp_of(abs(x));
    return half + 0.25 / half;
}

// sign(x) · log(|x| + √(x² + 1)); of large numbers log 2 |x|.
fn area_sine(x: vec4<f32>) -> vec4<f32> {
    let a = abs(x);
    let near = log1p_of(a + a * a / (1.0 + sqrt(1.0 + a * a)));
    let value = select(near, log_of(a) + LOG_TWO, a > vec4<f32>(1e4));
    return keep_nan(x, with_sign_of(x, value));
}

// log(x + √(x² - 1)), of what is above 1.
fn area_cosine(x: vec4<f32>) -> vec4<f32> {
    let t = x - 1.0;
    let near = log1p_of(t + sqrt(t * (x + 1.0)));
    let value = select(near, log_of(x) + LOG_TWO, x > vec4<f32>(1e4));
    let below = is_negative(x) | (bitcast<vec4<u32>>(x) < vec4<u32>(0x3f800000u));
    return keep_nan(x, nan_where(below, value));
}

// log((1 + x) / (1 - x)) / 2; near zero its series.
fn area_tangent(x: vec4<f32>) -> vec4<f32> {
    let a = abs(x);
    let z = a * a;
    let tail = 1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0)));
    let near = a + a * z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * tail)));
    let far = 0.5 * log1p_of(2.0 * a / (1.0 - a));
    let value = with_sign_of(x, select(far, near, a < vec4<f32>(0.3)));
    let bits = bitcast<vec4<u32>>(a);
    let at_one = infinite_where(bits == vec4<u32>(0x3f800000u), x, value);
    return keep_nan(x, nan_where(bits > vec4<u32>(0x3f800000u), at_one));
}
