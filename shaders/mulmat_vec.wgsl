// y[n, m] = sum_k weights[m, k] · x[n, k] for few columns: a work group takes ROWS rows of y from
// SOURCES of weights, its lanes stride over k, and a tree sums them.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import load/f32 as addend
// @import lib/addend
// @import lib/gated
// @import lib/grid
// @import lib/lane_sums

const WG: u32 = 64u;
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const COLS: u32 = 1u;
const SUMS: u32 = SOURCES * COLS;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32,
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
        if row < result_rows() && col < params.n {
            let second = lane_sum(i + (SOURCES - ROWS) * COLS);
            store(col, params.first_row + row, joined(lane_sum(i), second));
        }
    }
}

// Adds 32 products to each sum. Surplus rows and columns repeat the last one and are not stored.
fn accumulate(
    first_row: u32, first_col: u32, g: u32, sums: ptr<function, array<f32, SUMS>>,
) {
    var values: array<vec4<f32>, 8>;
    for (var r = 0u; r < SOURCES; r++) {
        let row = source_row(first_row + r % ROWS, r / ROWS);
        weights_load32(params.weights_group + row * params.groups + g, &values);
        for (var c = 0u; c < COLS; c++) {
            let col = min(first_col + c, params.n - 1u);
            let at = params.x_offset / 4u + (col * params.groups + g) * 8u;
            var part = vec4<f32>(0.0);
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                part += values[k] * x_load4(at + k);
            }
            (*sums)[r * COLS + c] += part.x + part.y + part.z + part.w;
        }
    }
}
