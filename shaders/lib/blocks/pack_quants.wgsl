// 32 quants as planes hold them: value i low in a byte and value i + 16 high, fifth bits in a word.

fn packed_nibbles(quants: ptr<function, array<vec4<u32>, 8>>) -> vec4<u32> {
    var words: vec4<u32>;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        // Named before they are shifted: what naga writes for D3D12 lacks the brackets.
        let low_i = pack4xU8((*quants)[i] & vec4<u32>(15u));
        let high_i = pack4xU8((*quants)[i + 4u] & vec4<u32>(15u));
        words[i] = low_i | (high_i << 4u);
    }
    return words;
}

fn packed_fifth_bits(quants: ptr<function, array<vec4<u32>, 8>>) -> u32 {
    var bits = 0u;
    for (var i = 0u; i < 8u; i++) {
        let four = ((*quants)[i] >> vec4<u32>(4u)) << vec4<u32>(0u, 1u, 2u, 3u);
        bits |= (four.x | four.y | four.z | four.w) << (4u * i);
    }
    return bits;
}
