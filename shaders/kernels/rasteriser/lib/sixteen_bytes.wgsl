// Values of four-bit quants, four at a time, by a tree of selections on the bits of a quant:
// without byte permutes no table lookup is fast.

// `bit` of each byte of `quants` as a mask of that byte.
fn byte_mask(quants: u32, bit: u32) -> u32 {
    return ((quants >> bit) & 0x01010101u) * 255u;
}

fn selected(mask: u32, clear: u32, full: u32) -> u32 {
    return clear ^ (mask & (clear ^ full));
}

// One byte of `numbers` in each byte of a word.
fn everywhere(numbers: vec4<u32>, i: u32) -> u32 {
    return ((numbers[i / 4u] >> (8u * (i % 4u))) & 255u) * 0x01010101u;
}

fn sixteen_bytes(numbers: vec4<u32>, quants: u32) -> u32 {
    let first = byte_mask(quants, 0u);
    let second = byte_mask(quants, 1u);
    var parts: array<u32, 4>;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = selected(first, everywhere(numbers, 4u * i), everywhere(numbers, 4u * i + 1u));
        let high_i = selected(first, everywhere(numbers, 4u * i + 2u), everywhere(numbers, 4u * i + 3u));
        parts[i] = selected(second, low_i, high_i);
    }
    let third = byte_mask(quants, 2u);
    return selected(
        byte_mask(quants, 3u), selected(third, parts[0], parts[1]), selected(third, parts[2], parts[3]),
    );
}
