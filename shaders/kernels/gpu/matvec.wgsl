// y[n, m] = sum_k weights[m, k] · x[n, k] for few columns: a work group takes ROWS rows of y from
// SOURCES of weights, and its lanes stride over k, a share of a row each. A lane loads the words of
// all its rows before it unpacks any, and sums stay in registers: every index is known when a
// kernel is compiled.
// @import kernels/gpu/share/values as share
// @import formats/vec4/f32 as x
// @import formats/load/f32 as addend
// @import kernels/gpu/lib/lane_sums_workgroup as lanes
// @import kernels/gpu/table/none as table
// @import kernels/gpu/prologue/values as prologue
// @import lib/linear/addend
// @import lib/linear/gated
// @import lib/q8/normed
// @import lib/index/grid

const WG: u32 = 64u;
const LANES: u32 = WG;           // that add up their sums
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const COLS: u32 = 1u;
const SUMS: u32 = 2u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, gain_offset: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// Where rows of weights begin, in shares, and columns of x, in vectors.
struct Starts { rows: array<u32, SOURCES>, columns: array<u32, COLS> }

fn compute(group: vec3<u32>, groups: vec3<u32>, lane: u32) {
    table_fill(lane);
    let first_row = group_index(group, groups) * ROWS;
    let first_col = group.z * COLS;
    let starts = starts_of(first_row, first_col);
    let shares = params.groups * 8u / share_VECTORS;
    var sums: array<f32, SUMS>;
    for (var i = lane; i < shares; i += WG) {
        multiply(words_of(starts, i), starts, i, lane, &sums);
    }
    lanes_add_up(&sums, lane);
    // There are as many lanes as results.
    let row = first_row + lane / COLS;
    let col = first_col + lane % COLS;
    if lane < ROWS * COLS && row < result_rows() && col < params.n {
        let factor = factor_of(lane % COLS);
        let second = lanes_sum(0u, lane + (SOURCES - ROWS) * COLS) * factor;
        store(col, params.first_row + row, joined(lanes_sum(0u, lane) * factor, second));
    }
}

// Surplus rows and columns repeat the last one and are not stored.
fn starts_of(first_row: u32, first_col: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        let row_r = source_row(first_row + r % ROWS, r / ROWS);
        starts.rows[r] = (params.weights_group + row_r * params.groups) * 8u / share_VECTORS;
    }
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(first_col + c, params.n - 1u);
        starts.columns[c] = params.x_offset / 4u + col_c * params.groups * 8u;
    }
    return starts;
}

fn words_of(starts: Starts, i: u32) -> array<weights_Words, SOURCES> {
    var words: array<weights_Words, SOURCES>;
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        words[r] = weights_words(starts.rows[r] + i);
    }
    return words;
}

fn multiply(
    words: array<weights_Words, SOURCES>, starts: Starts, i: u32, lane: u32,
    sums: ptr<function, array<f32, SUMS>>,
) {
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let column_c = share_column(starts.columns[c] + i * share_VECTORS, i * share_VECTORS);
        if NORMED {
            (*sums)[(SUMS - COLS) + c] += column_c.squares;
        }
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            let at_r = starts.rows[r] + i;
            (*sums)[r * COLS + c] = share_product(words[r], at_r, lane, column_c, (*sums)[r * COLS + c]);
        }
    }
}

fn factor_of(col: u32) -> f32 {
    if NORMED {
        return norm_factor(lanes_sum(0u, SOURCES * COLS + col));
    }
    return 1.0;
}
