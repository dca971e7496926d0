// Q4_K: value = quant · scale - minimum, quants of four bits. Planes as in formats/dequant/q4_k.
// @import lib/blocks/nibble_bytes
// @import lib/blocks/k_place

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = false;

struct buf_Row { quants: u32, supers: u32 }

struct buf_Words { quants: vec4<u32>, scales: vec4<u32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<vec4<u32>>;

fn buf_place(lane: u32) -> KPlace {
    return k_place(lane % 8u);
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 8u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(buf_quants[row.quants + group], buf_scales[row.supers + group / 8u]);
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, place: KPlace) -> Group {
    let scale = k_scale_min_at(words.scales, place);
    return nibbles_or_bytes(words.quants, scale.x, scale.y);
}
