// Q6_K: value = quant · scale - 32 · scale, quants of six bits and a scale per 16. Planes as in
// formats/dequant/q6_k.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/half_at
// @import kernels/rasteriser/lib/q6_k_group

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 2u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = true;

struct buf_Head { scales: vec4<u32>, scale: f32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_high: array<Eight>;
@group(0) @binding(2) var<storage, read> buf_scales: array<Sixteen>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    let block = group / 8u;
    let scale = half_at(buf_supers[block / 2u], block);
    return buf_Head(sixteen_words(buf_scales[block]), scale);
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let low = sixteen_words(buf_quants[group]);
    return q6_k_group(low, eight_words(buf_high[group]), head.scales, head.scale, place);
}
