// Q6_K: value = quant · scale - 32 · scale, quants of six bits and a scale per 16. Planes as in formats/dequant/q6_k.
// @import lib/blocks/group
// @import lib/blocks/shifted_half

const buf_PAIRS: u32 = 2u;
const buf_TWO_SCALES: bool = true;

struct buf_Row { quants: u32, scales: u32, supers: u32 }

struct buf_Words { quants: vec4<u32>, high: vec2<u32>, scales: u32, supers: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 2u, row / 16u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(
        buf_quants[row.quants + group], buf_high[row.quants + group],
        buf_scales[row.scales + group / 2u], buf_supers[row.supers + group / 16u],
    );
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

// Upper bits of 16 values where they belong in a byte: value 4 · j + b has bits 2 · j of byte b.
fn buf_upper(word: u32) -> vec4<u32> {
    return vec4<u32>(word << 4u, word << 2u, word, word >> 2u) & vec4<u32>(0x30303030u);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let scales = unpack4xI8(words.scales >> ((group & 1u) * 16u));
    let scale = vec2<f32>(scales.xy) * shifted_half(words.supers, group / 8u);
    let nibbles = nibble_group(words.quants, 0.0, 0.0);
    return Group(
        nibbles.low | buf_upper(words.high.x), nibbles.high | buf_upper(words.high.y),
        scale, 32.0 * scale,
    );
}
