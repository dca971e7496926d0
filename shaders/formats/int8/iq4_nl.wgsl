// IQ4_NL: value = number · scale, one of 16 numbers with a sign. Planes as in formats/dequant/iq4_nl.
// @import lib/blocks/shifted_half
// @import lib/blocks/nibble_table

const buf_PAIRS: u32 = 0u;
const buf_TWO_SCALES: bool = false;

struct buf_Words { quants: vec4<u32>, scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

fn buf_words(group: u32) -> buf_Words {
    return buf_Words(buf_quants[group], buf_scales[group / 2u]);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    return nibble_table_group(words.quants, shifted_half(words.scales, group), 0.0);
}
