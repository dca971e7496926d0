// Q4_0: value = quant · scale - 8 · scale, quants of four bits. Planes as in formats/dequant/q4_0.
// @import lib/blocks/nibble_bytes
// @import lib/blocks/shifted_half

const buf_PAIRS: u32 = 8u;
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
    let scale = shifted_half(words.scales, group);
    return nibbles_or_bytes(words.quants, scale, 8.0 * scale);
}
