// Weights of a lane's rows that lie in planes, for matmul_q8.
// @import kernels/rasteriser/dot/q4_0 as weights
// @import kernels/rasteriser/lib/block_groups
// @import kernels/rasteriser/lib/interleaved_rows

struct buf_Rows { starts: array<u32, ROWS> }
struct buf_Heads { rows: array<weights_Head, ROWS> }

// First row of a lane.
fn buf_first(group: u32, lane: u32) -> u32 {
    return interleaved_row(group, lane);
}

fn buf_rows(first_row: u32, source: u32, row_length: u32) -> buf_Rows {
    var rows: buf_Rows;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = source_row(first_row + r * INTERLEAVE, source);
        rows.starts[r] = params.weights_group + row_r * row_length;
    }
    return rows;
}

// What BLOCK groups share.
fn buf_heads(rows: buf_Rows, block: u32) -> buf_Heads {
    var heads: buf_Heads;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        heads.rows[r] = weights_head(rows.starts[r] + block);
    }
    return heads;
}

fn buf_groups(rows: buf_Rows, heads: buf_Heads, block: u32, i: u32) -> array<Group, ROWS> {
    var groups: array<Group, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let group_r = rows.starts[r] + block + i;
        groups[r] = weights_group(group_r, heads.rows[r], place(group_r, i));
    }
    return groups;
}
