// IQ4_XS: value = number · scale, one of 16 numbers with a sign. Planes as in formats/dequant/iq4_xs.
// @import kernels/rasteriser/lib/words_u32 as words
// @import kernels/rasteriser/lib/iq4_xs_group

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 0u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { scales: vec2<u32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_scales: array<Eight>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    return buf_Head(eight_words(buf_scales[group / 8u]));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    return iq4_xs_group(sixteen_words(buf_quants[group]), head.scales, place);
}
