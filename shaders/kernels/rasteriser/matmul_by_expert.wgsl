// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for devices whose lanes are a CPU's: a
// lane takes ROWS rows of one expert and COLS pairs of a token and this expert.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import kernels/rasteriser/lib/vec4_loaded as vec4s
// @import lib/experts/each_pair as ids
// @import kernels/rasteriser/lib/expert_lanes

const WG: u32 = 8u;
const ROWS: u32 = 2u;
const COLS: u32 = 1u;

fn compute_task(task: Task, lane: u32) {
    // Parameters are loaded outside of loops, where a rasteriser would load them in every iteration.
    let row_length = params.groups;
    let starts = row_starts(task, lane, row_length);
    let columns = column_starts(task, params.x_offset / 4u, row_length * 8u);
    var sums: array<f32, ROWS * COLS>;
    for (var g = 0u; g < row_length; g++) {
        var values = array<array<vec4<f32>, 8>, ROWS>();
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            var row_values = array<vec4<f32>, 8>();
            weights_load32(starts[r] + g, &row_values);
            values[r] = row_values;
        }
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let vec4s_c = vec4s_at(columns[c] + g * 8u, lane);
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                // @unroll
                for (var r = 0u; r < ROWS; r++) {
                    sums[r * COLS + c] += dot(values[r][k], vec4s_c[k]);
                }
            }
        }
    }
    put_all(task, lane, sums);
}
