// Product of integers of 64 bits, modulo 2⁶⁴.
// @import lib/numeric/wide_integers

alias buf_Value = vec2<u32>;
alias buf_Total = vec2<u32>;
alias buf_Bits = vec2<u32>;

fn buf_none() -> vec2<u32> {
    return vec2<u32>(1u, 0u);
}

fn buf_take(value: vec2<u32>, centre: f32) -> vec2<u32> {
    return value;
}

fn buf_join(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return wide_product(a, b);
}

fn buf_bits(total: vec2<u32>, divisor: f32) -> vec2<u32> {
    return total;
}
