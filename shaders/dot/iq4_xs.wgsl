// IQ4_XS: value = number · scale, one of 16 numbers with a sign. Planes as in quant/iq4_xs.
// @import words/u32 as words
// @import lib/group
// @import lib/sixteen
// @import lib/sixteen_group

const buf_SPAN: u32 = 8u;
const buf_PAIRS: u32 = 0u;
const buf_LINE: u32 = 4u;
const buf_HALVES: bool = false;

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
    let low = (head.scales.y >> (4u * place)) & 15u;
    let high = (head.scales.x >> (16u + 2u * place)) & 3u;
    let scale = unpack2x16float(head.scales.x).x * (f32(low | (high << 4u)) - 32.0);
    return sixteen_group(nibble_group(sixteen_words(buf_quants[group]), scale, 0.0), IQ4_NUMBERS);
}
