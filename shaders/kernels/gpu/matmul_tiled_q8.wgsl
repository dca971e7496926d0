// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight bits, for many columns: a
// work group makes a tile of TILE_M rows by TILE_N columns, SLAB groups of 32 values of k at a time
// through workgroup memory. While a slab is multiplied, the next one is on its way into registers.
//
// Formats whose quants have a zero other than 0 say it as OFFSET, others that have a minimum say MINIMA.
// @import formats/int8/q4_0 as weights
// @import lib/q8/packed_column as x
// @import formats/load/f32 as addend
// @import kernels/gpu/table/none as table
// @import lib/linear/addend
// @import lib/q8/normed
// @import lib/q8/parts
// @import kernels/gpu/lib/tile_place
// @import kernels/gpu/lib/k_range
// @import kernels/gpu/lib/q8_slab
// @import kernels/gpu/lib/q8_products

const AHEAD: bool = true;        // registers hold the next slab while one is multiplied
const SLAB: u32 = 1u;
const OFFSET: u32 = 8u;
const MINIMA: bool = false;
const SCALES: u32 = 2u;          // numbers of a group of weights, see lib/q8_slab
const W_ITEMS: u32 = 1u;         // groups of a slab that a thread brings
const X_ITEMS: u32 = 3u;         // vectors of columns
const FUSED: bool = false;       // fma rounds once
// The bits of this number and an integer below 2^22, added up, are those of the sum of the two.
const ZERO: f32 = 12582912.0;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    part_groups: u32, addend_offset: u32, addend_stride: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    table_fill(lane);
    let first_row = row_tile(group) * result_count(TILE_M);
    let first_col = group.x * TILE_N;
    let starts = starts_of(first_row, first_col, lane);
    let row = lane % LANE_ROWS;
    let col = lane / LANE_ROWS * COLS;
    var sums: array<f32, SUMS>;
    var squares: array<f32, X_ITEMS>;
    let begin = first_group(group);
    let end = end_group(begin);
    put_slab(brought(starts, begin, lane), starts, begin, 1.0, lane, &squares);
    for (var g = begin; g < end; g += SLAB) {
        workgroupBarrier();
        // The last iteration loads its own slab again, and counts it as nothing: in a branch the compiler
        // would put off the loads until there.
        let next = min(g + SLAB, end - SLAB);
        var slab = Slab();
        if AHEAD {
            slab = brought(starts, next, lane);
        }
        multiply(row, col, &sums);
        workgroupBarrier();
        if !AHEAD {
            slab = brought(starts, next, lane);
        }
        put_slab(slab, starts, next, select(0.0, 1.0, next > g), lane, &squares);
    }
    workgroupBarrier();
    var factors: array<f32, COLS>;
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        if NORMED && i_j < X_VECTORS && i_j % 3u == 2u {
            tile_x[i_j].w = bitcast<u32>(squares[j]);
        }
    }
    workgroupBarrier();
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        factors[c] = norm_factor(squares_of(col + c));
        columns[c] = first_result(group) + (first_col + col + c) / PARTS * params.m + params.first_row;
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = first_row + r * LANE_ROWS + row;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let inside_rc = row_r < result_rows() && first_col + col + c < params.n;
            let at_rc = columns[c] + row_r;
            if r < result_count(ROWS) && c % PARTS == 0u && inside_rc {
                let value_rc = whole(&sums, r * COLS + c) * factors[c];
                let other_rc = whole(&sums, (r + ROWS / 2u) % ROWS * COLS + c) * factors[c];
                y[at_rc] = added((first_col + col + c) / PARTS, params.first_row + row_r, joined(value_rc, other_rc));
            }
        }
    }
}

fn squares_of(col: u32) -> f32 {
    var sum = 0.0;
    if NORMED {
        // @unroll
        for (var s = 0u; s < SLAB; s++) {
            sum += tail_at(s, 3u, col);
        }
    }
    return sum;
}

fn whole(sums: ptr<function, array<f32, SUMS>>, first: u32) -> f32 {
    var sum = (*sums)[first];
    for (var part = 1u; part < PARTS; part++) {
        sum += (*sums)[first + part];
    }
    return sum;
}
