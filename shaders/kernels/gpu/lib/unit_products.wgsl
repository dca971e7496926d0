// A product by matrix units of a slab of 32 values of k that lies in workgroup memory as f16: each subgroup of a work
// group sums RM by RN matrices of results. The importing file has tile_w and tile_x, and reads matrices from them.

const SUBGROUP: u32 = 32u;
const DOWN: u32 = 2u;          // subgroups of a work group, along rows
const ACROSS: u32 = 2u;        // along columns
const RM: u32 = 4u;            // matrices of a subgroup, along rows; even where halves are joined
const RN: u32 = 2u;            // along columns
const STEPS: u32 = 2u;         // of MAT_K values, in 32
const W_ITEMS: u32 = 1u;       // rows that a thread brings, 32 values of each
const X_ITEMS: u32 = 4u;       // vectors of four values that a thread brings
const W_SCALE: f32 = 64.0;
const WG: u32 = DOWN * ACROSS * SUBGROUP;
const BLOCK_M: u32 = RM * MAT_M;  // of a subgroup
const BLOCK_N: u32 = RN * MAT_N;
const TILE_M: u32 = DOWN * BLOCK_M;
const TILE_N: u32 = ACROSS * BLOCK_N;
const STRIDE: u32 = 10u;       // vectors from a row to the next: eight, and two against bank conflicts
const MATRIX: u32 = MAT_M * MAT_N;

// Add the products of a subgroup's rows and columns, which begin at `row` and `col` of the tile.
fn multiply(row: u32, col: u32, sums: ptr<function, array<MatrixSums, RM * RN>>) {
    var rows: array<MatrixRows, RM>;
    // @unroll
    for (var k = 0u; k < STEPS; k++) {
        let at_k = k * (MAT_K / 4u);
        // @unroll
        for (var i = 0u; i < RM; i++) {
            rows[i] = tile_w_rows((row + i * MAT_M) * STRIDE + at_k, STRIDE);
        }
        // @unroll
        for (var j = 0u; j < RN; j++) {
            let column_j = tile_x_columns((col + j * MAT_N) * STRIDE + at_k, STRIDE);
            // @unroll
            for (var i = 0u; i < RM; i++) {
                (*sums)[i * RN + j] = multiply_add(rows[i], column_j, (*sums)[i * RN + j]);
            }
        }
    }
}

// Put the rows of a weight that a thread has brought.
fn put_rows(rows: array<array<vec4<f32>, 8>, W_ITEMS>, lane: u32) {
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        if TILE_M % WG == 0u || i_j < TILE_M {
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                tile_w[i_j * STRIDE + k] = vec4<f16>(rows[j][k] * W_SCALE);
            }
        }
    }
}
