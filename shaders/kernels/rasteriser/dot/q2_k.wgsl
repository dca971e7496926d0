// Q2_K: value = quant · scale - minimum, quants of two bits, scale and minimum per 16. Planes as in
// formats/dequant/q2_k.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/q2_k_group

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 8u;
const buf_CACHE_LINE: u32 = 8u;
const buf_TWO_SCALES: bool = true;

struct buf_Head { scales: vec4<u32>, supers: vec2<f32> }

@group(0) @binding(0) var<storage, read> buf_quants: array<Eight>;
@group(0) @binding(1) var<storage, read> buf_scales: array<Sixteen>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return eight_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    let block = group / 8u;
    return buf_Head(sixteen_words(buf_scales[block]), unpack2x16float(buf_supers[block]));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let bytes = head.scales[place / 2u] >> ((place & 1u) * 16u);
    return q2_k_group(eight_words(buf_quants[group]), bytes, head.supers);
}
