// Weights of a lane's four rows that lie in a texture.
// @import kernels/rasteriser/block_texture/q4_0 as weights
// @import kernels/rasteriser/lib/row_groups

const BLOCK: u32 = HEAD_GROUPS;
const INTERLEAVE: u32 = 1u;

struct buf_Rows { start: u32 }
struct buf_Heads { rows: Heads }

// First row of a lane.
fn buf_first(group: u32, lane: u32) -> u32 {
    return (group * WG + lane) * ROWS;
}

fn buf_rows(first_row: u32, source: u32, row_length: u32) -> buf_Rows {
    return buf_Rows(lane_start(params.weights_group / row_length + first_row + source * params.m, row_length));
}

// What BLOCK groups share.
fn buf_heads(rows: buf_Rows, block: u32) -> buf_Heads {
    return buf_Heads(texture_heads(rows.start, block));
}

fn buf_groups(rows: buf_Rows, heads: buf_Heads, block: u32, i: u32) -> array<Group, ROWS> {
    return texture_groups(rows.start, heads.rows, block, i);
}
