// Weights of a lane's four rows that lie in a stream, see lib/stream.
// @import stream/q4_0 as weights
// @import lib/row_groups

const STRIP: u32 = 1u;
const BLOCK: u32 = weights_BLOCK;
const TEXELS: u32 = weights_HEAD + weights_BLOCK * weights_LINES;

struct buf_Rows { at: u32 }
struct buf_Heads { all: weights_Heads }

// First row of a lane.
fn buf_first(group: u32, lane: u32) -> u32 {
    return (group * 8u + lane) * ROWS;
}

fn buf_rows(first_row: u32, source: u32, turns: u32) -> buf_Rows {
    let row = params.weights_group / turns + first_row + source * params.m;
    let tile = row / 32u * (turns / BLOCK * TEXELS);
    return buf_Rows(tile * 8u + row % 32u / 4u);
}

// What BLOCK groups share.
fn buf_heads(rows: buf_Rows, block: u32) -> buf_Heads {
    return buf_Heads(weights_heads(rows.at + block / BLOCK * (TEXELS * 8u)));
}

fn buf_groups(rows: buf_Rows, heads: buf_Heads, block: u32, i: u32) -> array<Group, ROWS> {
    let line = block / BLOCK * TEXELS + weights_HEAD + i * weights_LINES;
    return weights_groups(rows.at + line * 8u, heads.all, i);
}
