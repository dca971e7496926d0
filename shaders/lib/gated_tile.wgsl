// Rows of a tile of products whose threads have 8 rows of weights each: where halves of a weight are
// joined, the first four are of the gate and the others the same rows of the projection.
// @import lib/gated

// Rows of y that come of `rows` of weights.
fn result_count(rows: u32) -> u32 {
    return select(rows, rows / 2u, GATED);
}

// Row of the weight at place `i` of a tile.
fn tile_row(first_row: u32, i: u32) -> u32 {
    if GATED {
        return source_row(first_row + i / 8u * 4u + i % 4u, i / 4u % 2u);
    }
    return source_row(first_row + i, 0u);
}
