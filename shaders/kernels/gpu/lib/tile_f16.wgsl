// A tile of products in pairs of f16, 32 values of k at a time through workgroup memory. The importing
// file has `weights` and `x`. A group of 32 values is divided by a power of two near its largest,
// so that nothing overflows; sums of 16 products are in f16, and then go into f32 with the powers.
// Eight values of k of a row lie together, in planes: all rows' first ones, then all rows' second ones.
// @import kernels/gpu/lib/tile_place
// @import kernels/gpu/lib/tile_rows_rounded as rows
// @import kernels/gpu/lib/tile_columns_rounded as columns

const X_ITEMS: u32 = 1u;         // columns that a thread brings, 32 values of each
const W_ITEMS: u32 = 1u;         // rows
const SHARES: u32 = 1u;          // threads that bring 32 values of a column
const STEPS: u32 = 2u;           // of four rows that a thread multiplies at once

var<workgroup> tile_w: array<vec4<f16>, 8u * TILE_M>;
var<workgroup> tile_x: array<vec4<f16>, 8u * TILE_N>;
var<workgroup> w_powers: array<f32, TILE_M>;
var<workgroup> x_powers: array<f32, TILE_N>;

struct Slab { w: array<rows_Item, W_ITEMS>, x: array<columns_Item, X_ITEMS>, g: u32 }
// Where the rows and columns of a thread begin, in groups of 32 and in vectors.
struct Starts { w: array<u32, W_ITEMS>, x: array<u32, X_ITEMS> }

// The items of a thread in group `g` of each row and column.
fn brought(starts: Starts, g: u32) -> Slab {
    var slab: Slab;
    slab.g = g;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        slab.w[j] = rows_item(starts.w[j] + g);
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        slab.x[j] = columns_item(starts.x[j] + g * 8u);
    }
    return slab;
}

fn put_slab(slab: Slab, lane: u32) {
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        if TILE_M % WG == 0u || lane + j * WG < TILE_M {
            let i_j = lane + j * WG;
            let row_j = rows_row(slab.w[j], slab.g);
            w_powers[plane_place(i_j)] = row_j.power;
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                tile_w[(k / 2u * TILE_M + i_j) * 2u + k % 2u] = rows_four(row_j, k);
            }
        }
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        if TILE_N % WG == 0u || lane + j * WG < TILE_N {
            let i_j = lane + j * WG;
            let column_j = columns_column(slab.x[j]);
            x_powers[i_j] = column_j.power;
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                tile_x[(k / 2u * TILE_N + i_j) * 2u + k % 2u] = columns_four(column_j, k);
            }
        }
    }
}

// The largest power of two that is not above the largest magnitude, and its reciprocal.
fn power_of(values: array<vec4<f32>, 8>) -> vec2<f32> {
    var most = abs(values[0]);
    // @unroll
    for (var k = 1u; k < 8u; k++) {
        most = max(most, abs(values[k]));
    }
    let largest = bitcast<u32>(max(max(most.x, most.y), max(most.z, most.w)));
    let power = min(largest & 0x7f800000u, 0x7e800000u);
    return vec2<f32>(bitcast<f32>(power), bitcast<f32>(0x7f000000u - power));
}

// Sums of a thread's columns stand side by side in the text, as each waits for what it was before.
fn multiply(row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    var parts: array<vec2<f16>, SUMS>;
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        var x: array<vec4<f16>, 2u * COLS>;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            x[2u * c] = tile_x[(k * TILE_N + col + c) * 2u];
            x[2u * c + 1u] = tile_x[(k * TILE_N + col + c) * 2u + 1u];
        }
        // Rows by four, the last one first: one wait is for all.
        // @unroll
        for (var step = 0u; step < STEPS; step++) {
            var w: array<vec4<f16>, 8>;
            // @unroll
            for (var i = 0u; i < 4u; i++) {
                let at_i = (k * TILE_M + row + (step * 4u + 3u - i) * LANE_ROWS) * 2u;
                w[6u - 2u * i] = tile_w[at_i];
                w[7u - 2u * i] = tile_w[at_i + 1u];
            }
            // @unroll
            for (var i = 0u; i < 4u; i++) {
                // @unroll
                for (var h = 0u; h < 2u; h++) {
                    let w_h = w[2u * i + h];
                    let r_i = (step * 4u + i) * COLS;
                    // @unroll
                    for (var c = 0u; c < COLS; c++) {
                        parts[r_i + c] = fma(w_h.xy, x[2u * c + h].xy, parts[r_i + c]);
                    }
                    // @unroll
                    for (var c = 0u; c < COLS; c++) {
                        parts[r_i + c] = fma(w_h.zw, x[2u * c + h].zw, parts[r_i + c]);
                    }
                }
            }
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let power_r = w_powers[(r / 4u * LANE_ROWS + row) * 4u + r % 4u];
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let part_c = parts[r * COLS + c];
            let power_c = power_r * x_powers[col + c];
            (*sums)[r * COLS + c] = fma(f32(part_c.x + part_c.y), power_c, (*sums)[r * COLS + c]);
        }
    }
}
