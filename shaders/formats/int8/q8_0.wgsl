// Q8_0: value = quant · scale, quants of eight bits with a sign. Planes as in formats/dequant/q8_0.
// @import lib/blocks/group
// @import lib/blocks/shifted_half

const buf_PAIRS: u32 = 0u;
const buf_TWO_SCALES: bool = false;

struct buf_Row { quants: u32, scales: u32 }

struct buf_Words { low: vec4<u32>, high: vec4<u32>, scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(2u * row, row / 2u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(
        buf_quants[row.quants + 2u * group], buf_quants[row.quants + 2u * group + 1u],
        buf_scales[row.scales + group / 2u],
    );
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let scale = vec2<f32>(shifted_half(words.scales, group));
    return Group(words.low, words.high, scale, vec2<f32>(0.0));
}
