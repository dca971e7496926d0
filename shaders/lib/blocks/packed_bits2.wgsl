// Sixteen two-bit quants of a word as bytes: value 4 · j + b is bits 2 · j of byte b.

fn packed_bits2(word: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
}
