// Largest or smallest integer of 64 bits, by keys that compare as unsigned ones in the order of the values.

const SMALLEST: bool = false;
const SIGNED: bool = true;

alias buf_Value = vec2<u32>;
alias buf_Total = vec2<u32>;
alias buf_Bits = vec2<u32>;

fn buf_none() -> vec2<u32> {
    return vec2<u32>(0u, 0u);
}

fn buf_take(value: vec2<u32>, centre: f32) -> vec2<u32> {
    let key = vec2<u32>(value.x, value.y ^ select(0u, 0x80000000u, SIGNED));
    return select(key, ~key, SMALLEST);
}

fn buf_join(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let below = a.y < b.y || (a.y == b.y && a.x < b.x);
    return select(a, b, below);
}

fn buf_bits(total: vec2<u32>, divisor: f32) -> vec2<u32> {
    let key = select(total, ~total, SMALLEST);
    return vec2<u32>(key.x, key.y ^ select(0u, 0x80000000u, SIGNED));
}
