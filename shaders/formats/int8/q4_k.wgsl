// Q4_K: value = quant · scale - minimum, quants of four bits. Planes as in formats/dequant/q4_k.
// @import lib/blocks/nibble_bytes
// @import lib/blocks/k_place

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = false;

struct buf_Words { quants: vec4<u32>, scales: vec4<u32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<vec4<u32>>;

fn buf_place(lane: u32) -> KPlace {
    return k_place(lane % 8u);
}

fn buf_words(group: u32) -> buf_Words {
    return buf_Words(buf_quants[group], buf_scales[group / 8u]);
}

fn buf_group(words: buf_Words, group: u32, place: KPlace) -> Group {
    let scale = k_scale_min_at(words.scales, place);
    return nibbles_or_bytes(words.quants, scale.x, scale.y);
}
