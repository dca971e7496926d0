// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k], experts in blocks and x in eight bits, for
// devices whose lanes are a CPU's: a lane takes ROWS rows of one expert and COLS pairs of a token and
// this expert; see matmul_q8.wgsl.
// @import kernels/rasteriser/dot/q4_0 as weights
// @import lib/q8/packed_column as x
// @import lib/experts/each_pair as ids
// @import lib/q8/product
// @import kernels/rasteriser/lib/expert_lanes
// @import kernels/rasteriser/lib/block_groups

const WG: u32 = 8u;
const ROWS: u32 = 4u;
const COLS: u32 = 1u;
const TOUCH: bool = false;

// BLOCK groups share a head, and an iteration of the loop.
fn compute_task(task: Task, lane: u32) {
    let row_length = row_groups();
    let starts = row_starts(task, lane, row_length);
    let columns = column_starts(task, params.x_offset / 12u, row_length);
    if TOUCH {
        let word = touched(task.local, lane);
        // There are no products of no pairs, but a compiler cannot know and has to read.
        if params.pairs == 0u {
            y[lane] = f32(word);
        }
    }
    var sums: array<f32, ROWS * COLS>;
    for (var block = 0u; block < row_length; block += BLOCK) {
        var heads = array<weights_Head, ROWS>();
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            heads[r] = weights_head(starts[r] + block);
        }
        // @unroll
        for (var i = 0u; i < BLOCK; i++) {
            let g = block + i;
            var values = array<Column, COLS>();
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                values[c] = x_column(columns[c] + g, lane);
            }
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let weights_r = weights_group(starts[r] + g, heads[r], place(starts[r] + g, i));
                // @unroll
                for (var c = 0u; c < COLS; c++) {
                    sums[r * COLS + c] += product(weights_r, values[c]);
                }
            }
        }
    }
    put_all(task, lane, sums);
}

// Where rows are short: read a word of each cache line that the rows of a work group lie in, one
// after the other, which the hardware prefetcher follows.
fn touched(first: u32, lane: u32) -> u32 {
    let row_length = row_groups();
    let end = params.weights_rows * row_length - 1u;
    let start = min(first, params.weights_rows - 1u) * row_length + lane * weights_CACHE_LINE;
    var word = 0u;
    for (var g = 0u; g < WG * ROWS * row_length; g += WG * weights_CACHE_LINE) {
        word |= weights_touch(min(start + g, end));
    }
    return word;
}
