// Q8_0: value = quant · scale, quants of eight bits with a sign. Planes as in formats/dequant/q8_0.
// @import kernels/rasteriser/lib/words_u32 as words
// @import lib/blocks/group
// @import lib/blocks/half_at

const buf_SPAN: u32 = 2u;
const buf_PAIRS: u32 = 0u;
const buf_CACHE_LINE: u32 = 2u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { scales: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<ThirtyTwo>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return thirty_two_words(buf_quants[group])[0].x;
}

fn buf_head(group: u32) -> buf_Head {
    return buf_Head(buf_scales[group / 2u]);
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let words = thirty_two_words(buf_quants[group]);
    return Group(
        words[0],
        words[1],
        vec2<f32>(half_at(head.scales, place)),
        vec2<f32>(0.0),
    );
}
