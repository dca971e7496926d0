// Logarithm of the sum of exponentials, f32: the largest value so far, and the sum relative to it
// (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
// @import lib/numeric/log

alias buf_Value = f32;
alias buf_Total = vec2<f32>;
alias buf_Bits = u32;

const LARGEST: f32 = 0x1.fffffep+127;

fn buf_none() -> vec2<f32> {
    return vec2<f32>(-LARGEST, 0.0);
}

// What is not finite is in the sum alone: differences of infinities are no numbers.
fn buf_take(value: f32, centre: f32) -> vec2<f32> {
    let bits = bitcast<u32>(value);
    let finite = (bits & 0x7f800000u) != 0x7f800000u;
    let falls = bits == 0xff800000u;
    let end = vec2<f32>(select(LARGEST, -LARGEST, falls), select(value, 0.0, falls));
    return select(end, vec2<f32>(value, 1.0), finite);
}

fn buf_join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let top = max(a.x, b.x);
    let weights = exp(max(vec2<f32>(a.x, b.x) - top, vec2<f32>(-200.0)));
    return vec2<f32>(top, dot(vec2<f32>(a.y, b.y), weights));
}

fn buf_bits(total: vec2<f32>, divisor: f32) -> u32 {
    return bitcast<u32>(total.x + log_of(vec4<f32>(total.y)).x);
}
