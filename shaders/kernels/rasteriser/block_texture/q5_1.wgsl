// Q5_1: quants of five bits, a scale and a minimum per 32. As in dot/q5_1.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/high_bits

const buf_PAIRS: u32 = 4u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = unpack2x16float(row.scales[i]);
    return with_high_bits(nibble_group(row.quants, scale.x, -scale.y), row.high.x);
}
