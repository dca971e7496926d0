// One f16 of a word that holds two, for lanes that differ in which.

fn shifted_half(word: u32, i: u32) -> f32 {
    return unpack2x16float(word >> ((i & 1u) * 16u)).x;
}
