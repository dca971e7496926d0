// Random words in the order that MLX has them: counters go in pairs of one from each half, which share a
// call of Threefry; of an odd number the one in the middle has a call of its own.
// @import lib/random/threefry

fn random_word(key: vec2<u32>, words: u32, i: u32) -> u32 {
    let half = words / 2u;
    let second = half + words % 2u;
    if i < half {
        return threefry(key, vec2<u32>(i, second + i)).x;
    }
    if i < second {
        return threefry(key, vec2<u32>(half, 0u)).x;
    }
    return threefry(key, vec2<u32>(i - second, i)).y;
}
