// Exponentials to the last bits: WGSL's own may be off by 3 + 2 |x| units, and eˣ - 1 cancels.
// @import lib/numeric/nan
// @import lib/numeric/scaled

struct Exponential { whole: vec4<f32>, rest: vec4<f32> }

// eʳ - 1 for |r| up to 0.3475; the polynomial is fitted, off by 3e-10 of the result.
fn expm1_of_rest(r: vec4<f32>) -> vec4<f32> {
    let tail = 0.04166635777 + r * (0.008333389955 + r * (0.001394089317 + r * 1.984589793e-4));
    return r + r * r * (0.5000000045 + r * (0.1666666637 + r * tail));
}

// eˣ = 2^whole · (1 + rest); beyond ±174 that of ±174, which is infinite or zero.
fn exponential(x: vec4<f32>) -> Exponential {
    let near = clamp(x, vec4<f32>(-174.0), vec4<f32>(174.0));
    let whole = round(near * 1.4426950408889634);
    // log 2 in two numbers, the first of so few bits that its multiples are exact.
    let rest = (near - whole * 0.693359375) + whole * 2.12194440e-4;
    return Exponential(whole, expm1_of_rest(rest));
}

fn exp_of(x: vec4<f32>) -> vec4<f32> {
    let found = exponential(x);
    return keep_nan(x, scaled(1.0 + found.rest, found.whole));
}

// eˣ / 2, which is finite a little longer.
fn half_exp_of(x: vec4<f32>) -> vec4<f32> {
    let found = exponential(x);
    return keep_nan(x, scaled(1.0 + found.rest, found.whole - 1.0));
}

fn expm1_of(x: vec4<f32>) -> vec4<f32> {
    let found = exponential(x);
    let power = power_of_two(vec4<i32>(clamp(found.whole, vec4<f32>(-99.0), vec4<f32>(99.0))));
    let near = power * found.rest + (power - 1.0);
    let large = scaled(1.0 + found.rest, found.whole);
    let value = select(near, large, x > vec4<f32>(20.0));
    // Also keeps the sign of zero.
    return keep_nan(x, select(value, x, abs(x) < vec4<f32>(1e-8)));
}
