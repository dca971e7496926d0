// Keys that compare as unsigned integers in the order of the values, NaN above all.

fn key_of_f32(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    // Both zeros have one key.
    let ordered = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(ordered, 0xffffffffu, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn key_of_i32(value: i32) -> u32 {
    return bitcast<u32>(value) ^ 0x80000000u;
}

// Bits of a value with that key.
fn f32_of_key(key: u32) -> u32 {
    return select(~key, key ^ 0x80000000u, key >= 0x80000000u);
}
