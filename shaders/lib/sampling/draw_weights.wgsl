// Weights of candidates as integers, from their distances to the largest logit: the reasons are in
// `wgpu_backend/ops/sampling/host/weights.py`.

const LOG2_E: f32 = 1.4426950408889634;
const MINUS_INFINITY: u32 = 0xff800000u;

// Upper half of the product of two u32.
fn multiply_high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// 2^-power in units of 2^-23: 2^-f = 1 - f (C1 - f (C2 - f (…))) in units of 2^-31, then shifted.
fn weight(power: f32) -> u32 {
    let fixed = u32(min(power, 63.0) * 16777216.0);
    let whole = fixed >> 24u;
    if whole > 23u {
        return 0u;
    }
    let fraction = fixed << 8u;
    var value = 233859u;
    value = 2736670u - multiply_high(value, fraction);
    value = 20570151u - multiply_high(value, fraction);
    value = 119164956u - multiply_high(value, fraction);
    value = 515877768u - multiply_high(value, fraction);
    value = 1488521975u - multiply_high(value, fraction);
    value = 0x80000000u - multiply_high(value, fraction);
    return (value + (128u << whole)) >> (8u + whole);
}
