// Numbers that four-bit quants stand for, four at a time: a tree of choices by the bits of a quant
// makes them without a table, since devices without byte permutes have none that is fast.

// `bit` of each byte of `quants` as a mask of that byte.
fn byte_mask(quants: u32, bit: u32) -> u32 {
    return ((quants >> bit) & 0x01010101u) * 255u;
}

fn chosen(mask: u32, clear: u32, full: u32) -> u32 {
    return clear ^ (mask & (clear ^ full));
}

// One byte of `numbers` in each byte of a word.
fn everywhere(numbers: vec4<u32>, i: u32) -> u32 {
    return ((numbers[i / 4u] >> (8u * (i % 4u))) & 255u) * 0x01010101u;
}

fn sixteen_bytes(numbers: vec4<u32>, quants: u32) -> u32 {
    let first = byte_mask(quants, 0u);
    let second = byte_mask(quants, 1u);
    var fours: array<u32, 4>;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = chosen(first, everywhere(numbers, 4u * i), everywhere(numbers, 4u * i + 1u));
        let high_i = chosen(first, everywhere(numbers, 4u * i + 2u), everywhere(numbers, 4u * i + 3u));
        fours[i] = chosen(second, low_i, high_i);
    }
    let third = byte_mask(quants, 2u);
    return chosen(
        byte_mask(quants, 3u), chosen(third, fours[0], fours[1]), chosen(third, fours[2], fours[3]),
    );
}
