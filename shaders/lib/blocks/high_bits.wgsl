// Bits above the nibbles of 32 quants, one each in a word.
// @import lib/blocks/group
// @import lib/blocks/nibbles

fn sixteen_high_bits(bits: u32) -> vec4<u32> {
    return vec4<u32>(
        high_bits_of(bits, 0u), high_bits_of(bits, 4u), high_bits_of(bits, 8u), high_bits_of(bits, 12u),
    );
}

fn with_high_bits(group: Group, bits: u32) -> Group {
    return Group(
        group.low | sixteen_high_bits(bits),
        group.high | sixteen_high_bits(bits >> 16u),
        group.scale,
        group.minimum,
    );
}
