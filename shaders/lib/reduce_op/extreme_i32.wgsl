// Largest or smallest i32, by keys that order as the values do.
// @import lib/sort/order

const SMALLEST: bool = false;

alias buf_Value = i32;
alias buf_Total = u32;
alias buf_Bits = u32;

fn buf_none() -> u32 {
    return 0u;
}

fn buf_take(value: i32, centre: f32) -> u32 {
    let key = key_of_i32(value);
    return select(key, ~key, SMALLEST);
}

fn buf_join(a: u32, b: u32) -> u32 {
    return max(a, b);
}

fn buf_bits(total: u32, divisor: f32) -> u32 {
    return select(total, ~total, SMALLEST) ^ 0x80000000u;
}
