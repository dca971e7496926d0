// The 16 numbers of IQ4_NL and IQ4_XS, as i8 in four words.

const IQ4_WORDS: vec4<u32> = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);

// Numbers that four quants, a byte each, stand for.
fn iq4_numbers(quants: u32) -> vec4<f32> {
    let q = unpack4xU8(quants);
    let low = select(vec4<u32>(IQ4_WORDS.x), vec4<u32>(IQ4_WORDS.y), q >= vec4<u32>(4u));
    let high = select(vec4<u32>(IQ4_WORDS.z), vec4<u32>(IQ4_WORDS.w), q >= vec4<u32>(12u));
    let words = select(low, high, q >= vec4<u32>(8u));
    let top = words << (vec4<u32>(24u) - 8u * (q & vec4<u32>(3u)));
    return vec4<f32>(bitcast<vec4<i32>>(top) >> vec4<u32>(24u));
}
