// Q5_K: value = quant · scale - minimum, quants of five bits. Planes as in formats/dequant/q5_k.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/group
// @import lib/blocks/high_bits
// @import lib/blocks/k_scales

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 4u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { scales: vec4<u32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<Sixteen>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    return buf_Head(sixteen_words(buf_scales[group / 8u]));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let scale = k_scale_min(head.scales, place);
    let low = nibble_group(sixteen_words(buf_quants[group]), scale.x, scale.y);
    return with_high_bits(low, buf_high[group]);
}
