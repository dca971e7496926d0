// Unpacking of words into small integers held as f32.

fn low_nibbles(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu));
}

fn high_nibbles(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu));
}

// Bits `first` to `first + 3` of a word, each as 16 in its own byte: the fifth bit of four quants.
fn high_bits_of(word: u32, first: u32) -> u32 {
    let bits = word >> first;
    return ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
}
