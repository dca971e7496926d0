// y[n, m] = sum_k weights[m, k] · x[n, k] for devices whose lanes are a CPU's, where workgroup memory
// is slow and every load is dear: a lane takes SOURCES rows of weights and COLS columns, so that 32
// weights serve all columns and each vector of x, loaded by an index that is the same in all lanes,
// all rows. It makes ROWS rows of y: as many, or half of that where two are joined.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import formats/load/f32 as addend
// @import lib/linear/addend
// @import lib/linear/gated
// @import lib/index/grid

const WG: u32 = 8u;
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const COLS: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, first_group_z: u32,
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
    let first_row = group_index(group, groups) * (WG * ROWS) + lane;
    let first_col = (params.first_group_z + group.z) * COLS;
    var sums: array<f32, SOURCES * COLS>;
    for (var g = 0u; g < params.groups; g++) {
        var values = array<array<vec4<f32>, 8>, SOURCES>();
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            var row_values = array<vec4<f32>, 8>();
            let row_r = source_row(first_row + r % ROWS * WG, r / ROWS);
            weights_load32(params.weights_group + row_r * params.groups + g, &row_values);
            values[r] = row_values;
        }
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let col_c = min(first_col + c, params.n - 1u);
            let at_c = params.x_offset / 4u + (col_c * params.groups + g) * 8u;
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                let x_k = x_load4(at_c + k);
                // @unroll
                for (var r = 0u; r < SOURCES; r++) {
                    sums[r * COLS + c] += dot(values[r][k], x_k);
                }
            }
        }
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row = first_row + r * WG;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            if first_col + c < params.n && row < result_rows() {
                let value = joined(sums[r * COLS + c], sums[(r + SOURCES - ROWS) * COLS + c]);
                store(first_col + c, params.first_row + row, value);
            }
        }
    }
}
