// Q3_K: value = quant · scale - 4 · scale, quants of three bits and a scale per 16. Planes as in
// formats/dequant/q3_k.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/half_at
// @import kernels/rasteriser/lib/q3_k_group

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 8u;
const buf_CACHE_LINE: u32 = 8u;
const buf_TWO_SCALES: bool = true;

struct buf_Head { scales: vec3<u32>, scale: f32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<Eight>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return eight_words(buf_quants[group]).x;
}

fn buf_head(group: u32) -> buf_Head {
    let block = group / 8u;
    let at = block * 3u;
    let scales = vec3<u32>(buf_scales[at], buf_scales[at + 1u], buf_scales[at + 2u]);
    return buf_Head(scales, half_at(buf_supers[block / 2u], block));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let words = eight_words(buf_quants[group]);
    return q3_k_group(words, buf_high[group], head.scales, head.scale, place);
}
