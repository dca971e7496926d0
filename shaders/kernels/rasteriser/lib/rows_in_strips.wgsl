// Rows of a lane in strips.
// @import kernels/rasteriser/lib/strip

fn buf_row(group: u32, lane: u32, r: u32) -> u32 {
    return strip_row(group, lane) + r * STRIP;
}
