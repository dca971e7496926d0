// Running sum of f32, which begins with the first value: -0.0 + x has the sign of x, also of zeros,
// and 0.0 + -0.0 is 0.0.

alias buf_Value = f32;
alias buf_Total = f32;
alias buf_Bits = u32;

fn buf_none() -> f32 {
    // WGSL lets a compiler ignore the sign of a constant zero, and Tint does.
    var bits = 0x80000000u;
    return bitcast<f32>(bits);
}

fn buf_take(value: f32, centre: f32) -> f32 {
    return value;
}

fn buf_join(a: f32, b: f32) -> f32 {
    return a + b;
}

fn buf_bits(total: f32, divisor: f32) -> u32 {
    return bitcast<u32>(total);
}
