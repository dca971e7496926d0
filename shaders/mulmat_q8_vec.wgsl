// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight bits, for few columns: a
// work group takes ROWS rows of y from SOURCES of weights, its lanes stride over k, and a tree sums
// them, and the squares of a column where they are wanted.
// @import dot/q4_0 as weights
// @import column/own as x
// @import load/f32 as addend
// @import lib/product
// @import lib/addend
// @import lib/gated
// @import lib/normed
// @import lib/parts
// @import lib/grid
// @import lib/lane_sums

const WG: u32 = 64u;
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const COLS: u32 = 1u;
const SUMS: u32 = 2u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = group_index(group, groups) * ROWS;
    let first_col = group.z * COLS;
    var sums: array<f32, SUMS>;
    for (var g = lane; g < params.groups; g += WG) {
        accumulate(first_row, first_col, g, &sums);
    }
    add_up_lanes(&sums, lane);
    for (var i = lane; i < ROWS * COLS; i += WG) {
        let row = first_row + i / COLS;
        let col = first_col + i % COLS;
        if row < result_rows() && col < params.n && col % PARTS == 0u {
            let factor = factor_of(i % COLS);
            let second = lane_sum(i + (SOURCES - ROWS) * COLS) * factor;
            store(col / PARTS, params.first_row + row, joined(lane_sum(i) * factor, second));
        }
    }
}

// Adds 32 products to each sum. Surplus rows and columns repeat the last one and are not stored.
fn accumulate(
    first_row: u32, first_col: u32, g: u32, sums: ptr<function, array<f32, SUMS>>,
) {
    for (var r = 0u; r < SOURCES; r++) {
        let row = source_row(first_row + r % ROWS, r / ROWS);
        let at = params.weights_group + row * params.groups + g;
        let values = weights_group(at, weights_head(at), at % weights_SPAN);
        for (var c = 0u; c < COLS; c++) {
            let col = min(first_col + c, params.n - 1u);
            let column = x_column(params.x_offset / 12u + col * params.groups + g, g % WG);
            (*sums)[r * COLS + c - c % PARTS] += product(values, column);
            if NORMED && r == 0u {
                (*sums)[SOURCES * COLS + c] += column.squares;
            }
        }
    }
}

fn factor_of(col: u32) -> f32 {
    if NORMED {
        return norm_factor(lane_sum(SOURCES * COLS + col));
    }
    return 1.0;
}
