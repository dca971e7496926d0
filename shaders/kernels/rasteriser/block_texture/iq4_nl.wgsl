// IQ4_NL: quants stand for 16 numbers, a scale per 32. As in dot/iq4_nl.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/half_at
// @import lib/blocks/sixteen
// @import kernels/rasteriser/lib/sixteen_group

const buf_PAIRS: u32 = 0u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = half_at(row.scales[i / 2u], i);
    return sixteen_group(nibble_group(row.quants, scale, 0.0), IQ4_NUMBERS);
}
