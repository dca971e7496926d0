// Q2_K: value = quant · scale - minimum, quants of two bits, scale and minimum per 16.
// Planes as in formats/dequant/q2_k.
// @import lib/blocks/q2_k_group

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = true;

struct buf_Words { quants: vec2<u32>, scales: u32, supers: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

fn buf_words(group: u32) -> buf_Words {
    return buf_Words(buf_quants[group], buf_scales[group / 2u], buf_supers[group / 8u]);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let bytes = words.scales >> ((group & 1u) * 16u);
    return q2_k_group(words.quants, bytes, unpack2x16float(words.supers));
}
