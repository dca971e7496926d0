// Q4_0: quants of four bits, a scale per 32. As in dot/q4_0.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/half_at

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = half_at(row.scales[i / 2u], i);
    return nibble_group(row.quants, scale, 8.0 * scale);
}
