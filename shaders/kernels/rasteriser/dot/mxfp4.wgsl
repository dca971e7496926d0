// MXFP4: value = (number + 12) · scale - 12 · scale, one of 16 numbers from -12 to 12. Planes as in
// formats/dequant/mxfp4.
// @import kernels/rasteriser/lib/words_u32 as words
// @import kernels/rasteriser/lib/mxfp4_group

const buf_SPAN: u32 = 2u;
const buf_PAIRS: u32 = 4u;
const buf_CACHE_LINE: u32 = 4u;
const buf_TWO_SCALES: bool = false;

struct buf_Head { exponents: u32 }

@group(0) @binding(0) var<storage, read> buf_quants: array<Sixteen>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_touch(group: u32) -> u32 {
    return sixteen_words(buf_quants[group]).x;
}

// The exponents of two groups.
fn buf_head(group: u32) -> buf_Head {
    return buf_Head(buf_scales[group / 4u] >> ((group & 2u) * 8u));
}

fn buf_group(group: u32, head: buf_Head, place: u32) -> Group {
    let exponent = (head.exponents >> ((place & 1u) * 8u)) & 255u;
    return mxfp4_group(sixteen_words(buf_quants[group]), exponent);
}
