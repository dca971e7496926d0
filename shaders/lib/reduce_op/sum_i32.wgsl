// Sum of i32 or u32, modulo 2³².

alias buf_Value = i32;
alias buf_Total = i32;
alias buf_Bits = u32;

fn buf_none() -> i32 {
    return 0;
}

fn buf_take(value: i32, centre: f32) -> i32 {
    return value;
}

fn buf_join(a: i32, b: i32) -> i32 {
    return a + b;
}

fn buf_bits(total: i32, divisor: f32) -> u32 {
    return bitcast<u32>(total);
}
