// Q5_1: value = quant · scale + minimum, quants of five bits. Planes as in formats/dequant/q5_1.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/group
// @import lib/blocks/high_bits

const buf_SPAN: u32 = 2u;
const buf_PAIRS: u32 = 4u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { scales: vec2<u32>, high: vec2<u32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_high: array<Eight>;
@group(0) @binding(2) var<storage, read> buf_scales: array<Eight>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    return buf_Head(eight_words(buf_scales[group / 2u]), eight_words(buf_high[group / 2u]));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let odd = (place & 1u) == 1u;
    let scale = unpack2x16float(select(head.scales.x, head.scales.y, odd));
    let high = select(head.high.x, head.high.y, odd);
    return with_high_bits(nibble_group(sixteen_words(buf_quants[group]), scale.x, -scale.y), high);
}
