// IQ4_XS: quants stand for 16 numbers, a scale per 32. As in dot/iq4_xs.
// @import kernels/rasteriser/lib/block_texture
// @import kernels/rasteriser/lib/iq4_xs_group

const buf_PAIRS: u32 = 0u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    return iq4_xs_group(row.quants, row.scales.xy, i);
}
