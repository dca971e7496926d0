// MXFP4: value = (number + 12) · scale - 12 · scale, one of 16 numbers from -12 to 12.
// Planes as in formats/dequant/mxfp4.
// @import lib/blocks/nibble_table

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Row { quants: u32, scales: u32 }

struct buf_Words { quants: vec4<u32>, scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 4u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(buf_quants[row.quants + group], buf_scales[row.scales + group / 4u]);
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let exponent = (words.scales >> ((group & 3u) * 8u)) & 255u;
    // 2^(exponent - 128) by its bits; the two smallest are below the normal numbers.
    let scale = bitcast<f32>(select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u));
    return nibble_table_group(words.quants, scale, 12.0 * scale);
}
