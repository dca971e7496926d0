// Q5_0: quants of five bits, a scale per 32. As in dot/q5_0.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/high_bits
// @import lib/blocks/half_at

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = half_at(row.scales[i / 2u], i);
    return with_high_bits(nibble_group(row.quants, scale, 16.0 * scale), row.high.x);
}
