// MXFP4: quants stand for 16 numbers, an exponent per 32. As in dot/mxfp4.
// @import kernels/rasteriser/lib/block_texture
// @import kernels/rasteriser/lib/mxfp4_group

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    return mxfp4_group(row.quants, (row.scales.x >> (i * 8u)) & 255u);
}
