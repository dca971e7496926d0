// Q5_1: quants of five bits, a scale and a minimum per 32. As in dot/q5_1.
// @import kernels/rasteriser/lib/stream
// @import lib/blocks/high_bits

const buf_PAIRS: u32 = 4u;
const buf_HALVES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = unpack2x16float(row.scales[i]);
    return with_fifths(nibble_group(row.quants, scale.x, -scale.y), row.high.x);
}
