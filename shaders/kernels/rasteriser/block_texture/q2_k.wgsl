// Q2_K: quants of two bits, a scale and a minimum per 16. As in dot/q2_k.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/q2_k_group

const buf_PAIRS: u32 = 8u;
const buf_TWO_SCALES: bool = true;

fn buf_group(row: Row, i: u32) -> Group {
    let bytes = row.scales[i / 2u] >> ((i & 1u) * 16u);
    return q2_k_group(row.quants.xy, bytes, unpack2x16float(row.supers));
}
