// Q3_K: quants of three bits, a scale per 16. As in dot/q3_k.
// @import kernels/rasteriser/lib/block_texture
// @import kernels/rasteriser/lib/q3_k_group

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = true;

fn buf_group(row: Row, i: u32) -> Group {
    let d = unpack2x16float(row.supers).x;
    return q3_k_group(row.quants.xy, row.high.x, row.scales.xyz, d, i);
}
