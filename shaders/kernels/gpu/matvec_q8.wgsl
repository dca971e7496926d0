// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight or sixteen bits or f16,
// for few columns: LANES lanes take ROWS rows of y from SOURCES of weights and stride over k. A
// lane loads the words of all its rows before it unpacks any, and sums stay in registers: every
// index is known when a kernel is compiled. A work group has all LANES that it takes to make what
// its epilogue stores together.
// @import formats/int8/q4_0 as weights
// @import lib/q8/packed_column as x
// @import formats/load/f32 as addend
// @import kernels/gpu/lib/lane_sums_workgroup as lanes
// @import kernels/gpu/table/none as table
// @import kernels/gpu/product/bytes as pair
// @import kernels/gpu/lib/one_group as iteration
// @import lib/linear/gated
// @import lib/q8/normed
// @import lib/q8/parts
// @import kernels/gpu/epilogue/values as epilogue
// @import lib/index/grid

const WG: u32 = 64u;
const LANES: u32 = WG;           // that share rows, of which others make others
const BLOCKS: u32 = WG / LANES;  // of lanes; where that is one, a compiler knows that 0 is the only
const ROWS: u32 = 4u;
const SOURCES: u32 = 4u;
const COLS: u32 = 1u;
const ALONE: bool = false;       // x has no other columns
const SUMS: u32 = 4u;
const WHOLE: bool = false;       // lanes that share rows have ROWS of them, or none
const ALIGNED: bool = false;     // rows are WHOLE, and begin at multiples of 16 groups
const UNITS: u32 = 1u;           // shares of a group of 32 that lanes take one by one
const EVEN: bool = false;        // all lanes take as many groups, in whole iterations
const ONCE: bool = false;        // of which there is one

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, scale_offset: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

fn compute(group: vec3<u32>, groups: vec3<u32>, lane: u32) {
    table_fill(lane);
    let first_row = group_index(group, groups) * (BLOCKS * ROWS);
    let first_col = select(group.z * COLS, 0u, ALONE);
    // With shares of a group, places in vector registers leave the compiler more loads at once.
    let block = select(lane / LANES % BLOCKS, lanes_block(lane), UNITS == 1u);
    // These are the same; of several columns compilers order the products worse with the first.
    let first = select(lane - block * LANES, lane % LANES, ALONE);
    var sums = sums_of_a_lane(first_row + block * ROWS, first_col, lane, first);
    lanes_add_up(&sums, lane);
    epilogue_put(first_row, first_col, lane);
}

fn all_columns() -> u32 {
    return select(params.n, 1u, ALONE);
}

// Steps from an iteration of a lane to the next.
const STRIDE: u32 = LANES * (GROUPS_AT_ONCE / STEP);

// A row of the work group's results, of one of its columns, once lanes are added up.
fn result_of(row: u32, col: u32) -> f32 {
    let block = row / ROWS % BLOCKS;
    return result_at(block, row - block * ROWS, col, factor_of(block, col));
}

// Four of them, from a multiple of four on: the same lanes have all, or none has more than two.
fn four_results_of(row: u32, col: u32) -> vec4<f32> {
    var results: vec4<f32>;
    let block = row / ROWS % BLOCKS;
    let factor = factor_of(block, col);
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        if ROWS % 4u == 0u {
            results[k] = result_at(block, row - block * ROWS + k, col, factor);
        } else {
            results[k] = result_of(row + k, col);
        }
    }
    return results;
}

fn result_at(block: u32, row: u32, col: u32, factor: f32) -> f32 {
    let at = row * COLS + col;
    let second = lanes_sum(block, at + (SOURCES - ROWS) * COLS) * factor;
    return joined(lanes_sum(block, at) * factor, second);
}

// Sums of a lane's groups of 32, from the `first` on. Surplus rows and columns repeat the last one and are not stored.
fn sums_of_a_lane(first_row: u32, first_col: u32, lane: u32, first: u32) -> array<f32, SUMS> {
    // ALIGNED rows begin so much further than the first one, whichever that is: all lanes add the same.
    let own_row = select(first_row, min(first_row, result_rows() - ROWS), WHOLE);
    let steps = select(params.groups * UNITS / STEP, STRIDE, ONCE);
    // Where lanes have as many iterations, what counts these is the same for all.
    let own = select(0u, first, EVEN);
    let start = params.weights_group * UNITS / STEP + own_row * steps + own;
    var rows: array<u32, SOURCES>;
    var planes: array<iteration_Row, SOURCES>;
    // @unroll
    for (var r = 0u; r < SOURCES; r++) {
        var row_r = source_row(first_row + r % ROWS, r / ROWS);
        if WHOLE {
            row_r = own_row + r % ROWS + r / ROWS * params.m;
        }
        rows[r] = select((params.weights_group + row_r * params.groups) * UNITS, start, ALIGNED);
        planes[r] = iteration_row(select(0u, r % ROWS + r / ROWS * params.m, ALIGNED));
    }
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(first_col + c, all_columns() - 1u);
        columns[c] = (params.x_offset / 12u + col_c * params.groups) * UNITS + own * STEP;
    }
    let place = weights_place(lane);
    var sums: array<f32, SUMS>;
    for (var i = first - own; i < select(steps, STRIDE, ONCE); i += STRIDE) {
        // @unroll
        for (var t = 0u; t < GROUPS_AT_ONCE; t++) {
            var words_t = array<weights_Words, SOURCES>();
            // @unroll
            for (var r = 0u; r < SOURCES; r++) {
                words_t[r] = iteration_words(planes[r], rows[r] + i, t);
            }
            var weights_t = array<Group, SOURCES>();
            // @unroll
            for (var r = 0u; r < SOURCES; r++) {
                weights_t[r] = weights_group(words_t[r], iteration_group(rows[r] + i, t), place);
            }
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                let column_c = iteration_column(columns[c], i, t, lane);
                pair_add(weights_t, column_c, c - c % PARTS, &sums);
                if NORMED {
                    sums[(SUMS - COLS) + c] += column_c.squares;
                }
            }
        }
    }
    return sums;
}

fn factor_of(block: u32, col: u32) -> f32 {
    if NORMED {
        return norm_factor(lanes_sum(block, SOURCES * COLS + col));
    }
    return 1.0;
}
