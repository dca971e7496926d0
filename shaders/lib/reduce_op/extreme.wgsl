// Largest or smallest f32, NaN where there is one, by keys that order as the values do.
// @import lib/sort/order

const SMALLEST: bool = false;

alias buf_Value = f32;
alias buf_Total = u32;
alias buf_Bits = u32;

fn buf_none() -> u32 {
    return 0u;
}

fn buf_take(value: f32, centre: f32) -> u32 {
    let key = key_of_f32(value);
    return select(key, ~key, SMALLEST && key != 0xffffffffu);
}

fn buf_join(a: u32, b: u32) -> u32 {
    return max(a, b);
}

fn buf_bits(total: u32, divisor: f32) -> u32 {
    return f32_of_key(select(total, ~total, SMALLEST && total != 0xffffffffu));
}
