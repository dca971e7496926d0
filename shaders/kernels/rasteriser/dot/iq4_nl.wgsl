// IQ4_NL: value = number · scale, one of 16 numbers with a sign. Planes as in formats/dequant/iq4_nl.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/group
// @import lib/blocks/half_at
// @import lib/blocks/sixteen
// @import kernels/rasteriser/lib/sixteen_group

const buf_SPAN: u32 = 2u;
const buf_PAIRS: u32 = 0u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    return buf_Head(buf_scales[group / 2u]);
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let scale = half_at(head.scales, place);
    return sixteen_group(nibble_group(sixteen_words(buf_quants[group]), scale, 0.0), IQ4_NUMBERS);
}
