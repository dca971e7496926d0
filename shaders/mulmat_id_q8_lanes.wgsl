// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k], experts in blocks and x in eight bits, for
// devices whose lanes are a CPU's: a lane takes ROWS rows of one expert and COLS pairs of a token and
// this expert; see mulmat_q8_lanes.wgsl.
// @import dot/q4_0 as weights
// @import column/own as x
// @import chosen/each as ids
// @import lib/product
// @import lib/expert_task
// @import lib/grid

const WG: u32 = 8u;
const ROWS: u32 = 4u;
const COLS: u32 = 1u;
const BLOCK: u32 = 1u;
const TOUCH: bool = false;
const GROUPS: u32 = 0u;

struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32,
    first_row: u32, weights_rows: u32, x_offset: u32, ids_offset: u32, tiles: u32, pairs: u32,
    bias_offset: u32, ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// Lanes whose rows are of another part read the last row and store nothing. BLOCK groups share a
// head, and a turn of the loop.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let task = task_of(group_index(group, groups), WG * ROWS);
    if !task.is_there {
        return;
    }
    let local = task.local + lane;
    let last = params.weights_rows - 1u;
    let turns = row_groups();
    var starts: array<u32, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        starts[r] = min(local + r * WG, last) * turns;
    }
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        columns[c] = params.x_offset / 12u + x_row(ids_pair(task.tile, c)) * turns;
    }
    if TOUCH {
        let word = touched(task.local, last, lane);
        // There are no products of no pairs, but a compiler cannot know and has to read.
        if params.pairs == 0u {
            y[0] = f32(word);
        }
    }
    var sums: array<f32, ROWS * COLS>;
    for (var block = 0u; block < turns; block += BLOCK) {
        var heads: array<weights_Head, ROWS>;
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            heads[r] = weights_head(starts[r] + block);
        }
        // @unroll
        for (var i = 0u; i < BLOCK; i++) {
            let g = block + i;
            var values: array<Column, COLS>;
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
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let pair = ids_pair(task.tile, c);
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            let row = task.row + lane + r * WG;
            if pair < params.pairs && row < params.m && local + r * WG <= last {
                y[pair * params.m + row] = with_bias(sums[r * COLS + c], task.expert, row);
            }
        }
    }
}

// Groups of a row, as a number that the compiler knows if there is a kernel for each length of rows.
fn row_groups() -> u32 {
    return select(params.groups, GROUPS, GROUPS > 0u);
}

// Place of a group among the weights_SPAN that share a head. A turn of as many begins with the first.
fn place(group: u32, i: u32) -> u32 {
    return select(group % weights_SPAN, i, BLOCK == weights_SPAN);
}

// Read a word of each line of memory that the rows of a work group lie in, one line after the other:
// a core foresees that, and fetches ahead, but not that lanes go along eight rows each at once.
fn touched(first: u32, last: u32, lane: u32) -> u32 {
    let turns = row_groups();
    let end = (last + 1u) * turns - 1u;
    let start = min(first, last) * turns + lane * weights_LINE;
    var word = 0u;
    for (var g = 0u; g < WG * ROWS * turns; g += WG * weights_LINE) {
        word |= weights_touch(min(start + g, end));
    }
    return word;
}
