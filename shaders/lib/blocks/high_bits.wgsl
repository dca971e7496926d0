// Bits above the nibbles of 32 quants, one each in a word.
// @import lib/blocks/group
// @import lib/blocks/nibbles

fn sixteen_fifths(bits: u32) -> vec4<u32> {
    return vec4<u32>(
        high_bits_of(bits, 0u), high_bits_of(bits, 4u), high_bits_of(bits, 8u), high_bits_of(bits, 12u),
    );
}

fn with_fifths(group: Group, bits: u32) -> Group {
    return Group(
        group.low | sixteen_fifths(bits),
        group.high | sixteen_fifths(bits >> 16u),
        group.scale,
        group.minimum,
    );
}
