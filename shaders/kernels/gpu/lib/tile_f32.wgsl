// A tile of products in f32, 32 values of k at a time through workgroup memory. The importing file has
// `weights` and `x_load4`. Vectors of four values of k lie in planes: all rows' first ones, then all
// rows' second ones. Where threads side by side bring vectors of one column, these would all lie in the
// same bank, so a column's place depends on the plane.
// @import kernels/gpu/lib/tile_place

const X_ITEMS: u32 = 4u;         // vectors of columns that a thread brings
const W_ITEMS: u32 = 1u;         // rows, 32 values of each
const SHARES: u32 = 8u;          // threads that bring 32 values of a column

var<workgroup> tile_w: array<vec4<f32>, 8u * TILE_M>;
var<workgroup> tile_x: array<vec4<f32>, 8u * TILE_N>;

struct Slab { w: array<array<vec4<f32>, 8>, W_ITEMS>, x: array<vec4<f32>, X_ITEMS> }
// Where the rows and columns of a thread's items begin, in groups of 32 and in vectors.
struct Starts { w: array<u32, W_ITEMS>, x: array<u32, X_ITEMS> }

// The items of a thread in group `g` of each row and column.
fn brought(starts: Starts, g: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        var values_j: array<vec4<f32>, 8>;
        weights_load32(starts.w[j] + g, &values_j);
        slab.w[j] = values_j;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        slab.x[j] = x_load4(starts.x[j] + g * 8u);
    }
    return slab;
}

fn put_slab(slab: Slab, lane: u32) {
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        if TILE_M % WG == 0u || lane + j * WG < TILE_M {
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                tile_w[k * TILE_M + lane + j * WG] = slab.w[j][k];
            }
        }
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        tile_x[i_j % SHARES * TILE_N + ((i_j / SHARES) ^ (i_j % COLS))] = slab.x[j];
    }
}

// Sums of a thread's columns stand side by side in the text, as each waits for what it was before.
fn multiply(row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        var x: array<vec4<f32>, COLS>;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            x[c] = tile_x[k * TILE_N + col + (c ^ (k % COLS))];
        }
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let w_r = tile_w[k * TILE_M + row + r * LANE_ROWS];
            // @unroll
            for (var i = 0u; i < 4u; i++) {
                // @unroll
                for (var c = 0u; c < COLS; c++) {
                    (*sums)[r * COLS + c] = fma(w_r[i], x[c][i], (*sums)[r * COLS + c]);
                }
            }
        }
    }
}
