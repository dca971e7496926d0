// y[n, m] = sum_k weights[m, k] · x[n, k], on any device: a work group takes ROWS rows of y from SOURCES
// of weights and COLS columns, its lanes stride over k, and a tree sums them. Rows of x come in any
// form that a file of lib/linear_prologue/ reads.
// @import formats/dequant/f32 as weights
// @import lib/linear_prologue/values as x
// @import formats/load/f32 as addend
// @import lib/linear/addend
// @import lib/linear/gated
// @import lib/index/grid
// @import lib/reduce/lane_sums
// @import lib/q8/normed
// @import lib/q8/parts

const WG: u32 = 64u;
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

// Surplus rows and columns repeat the last one; they are not stored.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = group_index(group, groups) * ROWS;
    let first_col = group.z * COLS;
    let cols = params.n / PARTS;
    var sums: array<f32, SUMS>;
    for (var g = lane; g < params.groups; g += WG) {
        for (var r = 0u; r < SOURCES; r++) {
            var values = array<vec4<f32>, 8>();
            let source = source_row(first_row + r % ROWS, r / ROWS);
            weights_load32(params.weights_group + source * params.groups + g, &values);
            for (var c = 0u; c < COLS; c++) {
                let x_c = x_values(min(first_col + c, cols - 1u), g);
                // @unroll
                for (var k = 0u; k < 8u; k++) {
                    sums[r * COLS + c] += dot(values[k], x_c[k]);
                }
            }
        }
        if NORMED {
            for (var c = 0u; c < COLS; c++) {
                sums[SOURCES * COLS + c] += x_squares(min(first_col + c, cols - 1u), g);
            }
        }
    }
    add_up_lanes(&sums, lane);
    let row = first_row + lane / COLS;
    let col = first_col + lane % COLS;
    if lane < ROWS * COLS && row < result_rows() && col < cols {
        let factor = factor_of(lane % COLS);
        let second = lane_sum(lane + (SOURCES - ROWS) * COLS) * factor;
        store(col, params.first_row + row, joined(lane_sum(lane) * factor, second));
    }
}

fn factor_of(col: u32) -> f32 {
    if NORMED {
        return norm_factor(lane_sum(SOURCES * COLS + col));
    }
    return 1.0;
}
