// y[n, m] = sum_k weights[m, k] · x[n, k], a row a lane and COLS columns at once: for devices whose
// lanes are a CPU's, where workgroup memory is slow and a load by a uniform index is cheap.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import lib/grid

const WG: u32 = 8u;
const COLS: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let row = grid_index(id, groups, WG);
    if row >= params.weights_rows {
        return;
    }
    let first = id.z * COLS;
    var sums: array<f32, COLS>;
    var at: array<u32, COLS>;
    // Surplus columns of the last group repeat the last one; they are not stored.
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        at[c] = params.x_offset / 4u + min(first + c, params.n - 1u) * params.groups * 8u;
    }
    var values: array<vec4<f32>, 8>;
    for (var g = 0u; g < params.groups; g++) {
        weights_load32(params.weights_group + row * params.groups + g, &values);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            var part_c = vec4<f32>(0.0);
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                part_c += values[k] * x_load4(at[c] + g * 8u + k);
            }
            sums[c] += part_c.x + part_c.y + part_c.z + part_c.w;
        }
    }
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        if first + c < params.n {
            y[(first + c) * params.m + params.first_row + row] = sums[c];
        }
    }
}
