// Q5_K: quants of five bits, a scale and a minimum per 32. As in dot/q5_k.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/high_bits
// @import lib/blocks/k_scales

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = k_scale_min(row.scales, i);
    return with_high_bits(nibble_group(row.quants, scale.x, scale.y), row.high.x);
}
