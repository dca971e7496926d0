// Q4_1: quants of four bits, a scale and a minimum per 32. As in dot/q4_1.
// @import kernels/rasteriser/lib/block_texture

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = unpack2x16float(row.scales[i]);
    return nibble_group(row.quants, scale.x, -scale.y);
}
