// Q5_0: value = quant · scale - 16 · scale, quants of five bits. Planes as in formats/dequant/q5_0.
// @import lib/blocks/high_bits
// @import lib/blocks/shifted_half

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Row { quants: u32, scales: u32 }

struct buf_Words { quants: vec4<u32>, high: u32, scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 2u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(
        buf_quants[row.quants + group], buf_high[row.quants + group], buf_scales[row.scales + group / 2u],
    );
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let scale = shifted_half(words.scales, group);
    return with_high_bits(nibble_group(words.quants, scale, 16.0 * scale), words.high);
}
