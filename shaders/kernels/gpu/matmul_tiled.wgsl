// y[n, m] = sum_k weights[m, k] · x[n, k] for many columns: a work group makes a tile of TILE_M rows by
// TILE_N columns, 32 values of k at a time through workgroup memory. While a slab is multiplied, the
// next one is on its way into registers.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import formats/load/f32 as addend
// @import lib/linear/addend
// @import kernels/gpu/lib/tile_f32 as tile
// @import kernels/gpu/lib/k_range

const AHEAD: bool = true;        // registers hold the next slab while one is multiplied

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    part_groups: u32, addend_offset: u32, addend_stride: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = row_tile(group) * result_count(TILE_M);
    let first_col = group.x * TILE_N;
    let starts = starts_of(first_row, first_col, lane);
    let row = lane % LANE_ROWS;
    let col = lane / LANE_ROWS * COLS;
    var sums: array<f32, SUMS>;
    let begin = first_group(group);
    let end = end_group(begin);
    put_slab(brought(starts, begin), lane);
    for (var g = begin + 1u; g <= end; g++) {
        workgroupBarrier();
        // The last iteration loads its own slab again.
        let next = min(g, end - 1u);
        var slab = Slab();
        if AHEAD {
            slab = brought(starts, next);
        }
        multiply(row, col, &sums);
        workgroupBarrier();
        if !AHEAD {
            slab = brought(starts, next);
        }
        put_slab(slab, lane);
    }
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        columns[c] = first_result(group) + (first_col + col + c) * params.m + params.first_row;
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = first_row + r * LANE_ROWS + row;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let at_rc = columns[c] + row_r;
            if r < result_count(ROWS) && row_r < result_rows() && first_col + col + c < params.n {
                let other_rc = sums[(r + ROWS / 2u) % ROWS * COLS + c];
                y[at_rc] = added(first_col + col + c, params.first_row + row_r, joined(sums[r * COLS + c], other_rc));
            }
        }
    }
}

fn starts_of(first_row: u32, first_col: u32, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        starts.w[j] = params.weights_group + tile_row(first_row, lane + j * WG) * params.groups;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        // Surplus columns repeat the last one, and are not stored.
        let col_j = min(first_col + i_j / SHARES, params.n - 1u);
        starts.x[j] = params.x_offset / 4u + col_j * params.groups * 8u + i_j % SHARES;
    }
    return starts;
}
