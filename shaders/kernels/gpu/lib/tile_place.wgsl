// Where a thread stands in a tile of products: it sums ROWS rows of weights by COLS columns of x. Its
// rows lie LANE_ROWS apart, so that neighbouring threads read neighbouring vectors of workgroup memory,
// which are in other banks, and store neighbouring values; its columns follow each other. Where halves
// of a weight are joined, the first half of its rows are of the gate, the others the same rows of the
// projection. ROWS is a multiple of 4.
// @import lib/linear/gated

const WG: u32 = 64u;
const LANE_ROWS: u32 = 8u;
const ROWS: u32 = 8u;
const COLS: u32 = 4u;
const TILE_M: u32 = LANE_ROWS * ROWS;
const TILE_N: u32 = WG / LANE_ROWS * COLS;
const SUMS: u32 = ROWS * COLS;

// Rows of y that come of `rows` of weights.
fn result_count(rows: u32) -> u32 {
    return select(rows, rows / 2u, GATED);
}

// Row of the weight at place `i` of a tile. Surplus rows repeat the last one, and are not stored.
fn tile_row(first_row: u32, i: u32) -> u32 {
    if GATED {
        let r = i / LANE_ROWS;
        return source_row(first_row + r % (ROWS / 2u) * LANE_ROWS + i % LANE_ROWS, r / (ROWS / 2u));
    }
    return source_row(first_row + i, 0u);
}

// Place of a row's number in a plane of numbers, one for each row of a tile, so that four of a thread's
// rows lie in a vector.
fn plane_place(i: u32) -> u32 {
    let r = i / LANE_ROWS;
    return (r / 4u * LANE_ROWS + i % LANE_ROWS) * 4u + r % 4u;
}
