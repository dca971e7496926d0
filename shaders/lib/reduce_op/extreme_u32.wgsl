// Largest or smallest u32.

const SMALLEST: bool = false;

alias buf_Value = u32;
alias buf_Total = u32;
alias buf_Bits = u32;

fn buf_none() -> u32 {
    return 0u;
}

fn buf_take(value: u32, centre: f32) -> u32 {
    return select(value, ~value, SMALLEST);
}

fn buf_join(a: u32, b: u32) -> u32 {
    return max(a, b);
}

fn buf_bits(total: u32, divisor: f32) -> u32 {
    return select(total, ~total, SMALLEST);
}
