// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight bits, for devices whose
// lanes are a CPU's: a lane makes ROWS rows of y and COLS columns. What bounds it are loads, of which
// a rasteriser does one for each lane and word, so all of a group of x is loaded by few lanes, see
// kernels/rasteriser/lib/column_shuffled.
// @import kernels/rasteriser/lib/planes_reader as reader
// @import lib/q8/packed_column as x
// @import formats/load/f32 as addend
// @import lib/q8/product
// @import lib/linear/gated
// @import lib/q8/normed
// @import lib/q8/parts
// @import lib/index/grid
// @import kernels/rasteriser/epilogue/q8_values as lane_epilogue

const WG: u32 = 8u;
const ROWS: u32 = 4u;
const SOURCES: u32 = 1u;
const COLS: u32 = 1u;
const AT_ONCE: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, scale_offset: u32, eps: f32, first_group_z: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// Surplus rows and columns repeat the last one; they are not stored. BLOCK groups share heads, and
// AT_ONCE of them an iteration. Where gate and up are joined, one follows the other: the same rows of each.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) work_groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = reader_first(group_index(group, work_groups), lane);
    let first_col = (params.first_group_z + group.z) * COLS;
    // Parameters are loaded outside of loops, where a rasteriser would load them in every iteration.
    let row_length = row_groups();
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(first_col + c, params.n - 1u);
        columns[c] = params.x_offset / 12u + col_c * row_length;
    }
    var sums: array<f32, SOURCES * ROWS * COLS>;
    var squares: array<f32, COLS>;
    // @unroll
    for (var source = 0u; source < SOURCES; source++) {
        let rows = reader_rows(first_row, source, row_length);
        for (var block = 0u; block < row_length; block += BLOCK) {
            let heads = reader_heads(rows, block);
            for (var first = 0u; first < BLOCK; first += AT_ONCE) {
                // @unroll
                for (var j = 0u; j < AT_ONCE; j++) {
                    let i = first + j;
                    let groups = reader_groups(rows, heads, block, i);
                    var values = array<Column, COLS>();
                    // @unroll
                    for (var c = 0u; c < COLS; c++) {
                        values[c] = x_column(columns[c] + block + i, lane);
                        if source == SOURCES - 1u {
                            squares[c] += values[c].squares;
                        }
                    }
                    // @unroll
                    for (var r = 0u; r < ROWS; r++) {
                        // @unroll
                        for (var c = 0u; c < COLS; c++) {
                            sums[(source * ROWS + r) * COLS + c / PARTS] += product(groups[r], values[c]);
                        }
                    }
                }
            }
        }
    }
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        if c % PARTS == 0u && first_col + c < params.n {
            let factor_c = norm_factor(squares[c]);
            var values: array<f32, ROWS>;
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let last_r = sums[((SOURCES - 1u) * ROWS + r) * COLS + c / PARTS] * factor_c;
                values[r] = joined(sums[r * COLS + c / PARTS] * factor_c, last_r);
            }
            lane_epilogue_put((first_col + c) / PARTS, first_row, values, lane);
        }
    }
}
