// Q2_K: value = quant · scale - minimum, quants of two bits, scale and minimum per 16.
// Planes as in formats/dequant/q2_k.
// @import lib/blocks/q2_k_group

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = true;

struct buf_Row { quants: u32, scales: u32, supers: u32 }

struct buf_Words { quants: vec2<u32>, scales: u32, supers: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 2u, row / 8u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(
        buf_quants[row.quants + group], buf_scales[row.scales + group / 2u],
        buf_supers[row.supers + group / 8u],
    );
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let bytes = words.scales >> ((group & 1u) * 16u);
    return q2_k_group(words.quants, bytes, unpack2x16float(words.supers));
}
