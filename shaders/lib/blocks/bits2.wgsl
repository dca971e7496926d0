// Unpacking of two-bit quants: of a word that holds 16, value 4 · j + b is bits 2 · j of byte b.

fn bits2(word: u32, j: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8((word >> (2u * j)) & 0x03030303u));
}
