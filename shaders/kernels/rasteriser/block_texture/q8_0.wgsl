// Q8_0: quants of eight bits with a sign, a scale per 32. As in dot/q8_0.
// @import kernels/rasteriser/lib/block_texture
// @import lib/blocks/half_at

const buf_PAIRS: u32 = 0u;
const buf_TWO_SCALES: bool = false;

fn buf_group(row: Row, i: u32) -> Group {
    let scale = half_at(row.scales[i / 2u], i);
    return Group(row.quants, row.more, vec2<f32>(scale), vec2<f32>(0.0));
}
