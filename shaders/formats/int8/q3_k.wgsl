// Q3_K: value = quant · scale - 4 · scale, quants of three bits and a scale per 16. Planes as in formats/dequant/q3_k.
// @import lib/blocks/high_bits
// @import lib/blocks/packed_bits2
// @import lib/blocks/shifted_half

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = true;

struct buf_Row { quants: u32, scales: u32, supers: u32 }

struct buf_Words { quants: vec2<u32>, bits: u32, low: u32, high: u32, supers: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_place(lane: u32) -> u32 {
    return lane;
}

// Where a row begins in each plane, if that is at a multiple of 16 groups; others count as part of `group`.
fn buf_row(row: u32) -> buf_Row {
    return buf_Row(row, row / 8u * 3u, row / 16u);
}

fn buf_words_in(row: buf_Row, group: u32) -> buf_Words {
    return buf_Words(
        buf_quants[row.quants + group],
        buf_high[row.quants + group],
        buf_scales[row.scales + group / 8u * 3u + (group & 7u) / 4u],
        buf_scales[row.scales + group / 8u * 3u + 2u],
        buf_supers[row.supers + group / 16u],
    );
}

fn buf_words(group: u32) -> buf_Words {
    return buf_words_in(buf_row(0u), group);
}

fn buf_group(words: buf_Words, group: u32, lane: u32) -> Group {
    let place = group & 7u;
    let low = words.low >> ((place & 3u) * 8u);
    let high = words.high >> (place * 4u);
    let both = (vec2<u32>(low, low >> 4u) & vec2<u32>(15u))
        | ((vec2<u32>(high, high >> 2u) & vec2<u32>(3u)) << vec2<u32>(4u));
    let scale = (vec2<f32>(both) - 32.0) * shifted_half(words.supers, group / 8u);
    return Group(
        packed_bits2(words.quants.x) | (sixteen_high_bits(words.bits) >> vec4<u32>(2u)),
        packed_bits2(words.quants.y) | (sixteen_high_bits(words.bits >> 16u) >> vec4<u32>(2u)),
        scale,
        4.0 * scale,
    );
}
