// Rows of a lane, interleaved over work groups.
// @import kernels/rasteriser/lib/interleaved_rows

fn buf_row(group: u32, lane: u32, r: u32) -> u32 {
    return interleaved_row(group, lane) + r * INTERLEAVE;
}
