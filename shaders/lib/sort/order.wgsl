// Keys that compare as unsigned integers in the order of the values, NaN above all.

const UNSIGNED: bool = false;

fn key_of_f32(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    // Both zeros have one key.
    let ordered = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(ordered, 0xffffffffu, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn key_of_i32(value: i32) -> u32 {
    return bitcast<u32>(value) ^ 0x80000000u;
}

// The same of the bits of an integer of any type, widened to 32 bits.
fn key_of_integer(bits: u32) -> u32 {
    return select(bits ^ 0x80000000u, bits, UNSIGNED);
}

// Bits of a value with that key.
fn f32_of_key(key: u32) -> u32 {
    return select(~key, key ^ 0x80000000u, key >= 0x80000000u);
}
