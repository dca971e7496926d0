// One f16 of a word that holds two.

fn half_at(word: u32, i: u32) -> f32 {
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}
