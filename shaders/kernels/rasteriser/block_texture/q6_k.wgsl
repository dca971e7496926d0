// Q6_K: quants of six bits, a scale per 16. As in dot/q6_k.
// @import kernels/rasteriser/lib/block_texture
// @import kernels/rasteriser/lib/q6_k_group

const buf_PAIRS: u32 = 2u;
const buf_TWO_SCALES: bool = true;

fn buf_group(row: Row, i: u32) -> Group {
    let d = unpack2x16float(row.supers).x;
    return q6_k_group(row.quants, row.high, row.scales, d, i);
}
