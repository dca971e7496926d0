// y = what an epilogue leaves of the rows of a product, on any device, where it takes rows together: 32
// that share a scale, or 64 that share a number of squares. A work group takes 64 rows of a column, a row
// a lane; a file of lib/linear_epilogue/ says what becomes of them.
// @import formats/dequant/f32 as weights
// @import lib/linear_prologue/values as x
// @import formats/load/f32 as addend
// @import lib/linear_epilogue/rounded as epilogue
// @import lib/linear/added
// @import lib/linear/gated
// @import lib/index/grid
// @import lib/q8/normed
// @import lib/q8/parts

const WG: u32 = 64u;
const SOURCES: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, scale_offset: u32, gain_offset: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// Rows of the column, zeros beyond the last.
var<workgroup> results: array<f32, WG>;

fn four_results(i: u32) -> vec4<f32> {
    return vec4<f32>(results[i], results[i + 1u], results[i + 2u], results[i + 3u]);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_row = group_index(group, groups) * WG;
    let row = first_row + lane;
    results[lane] = 0.0;
    if row < params.m {
        results[lane] = added(group.z, row, row_of_column(row, group.z));
    }
    workgroupBarrier();
    epilogue_put(group.z, first_row, lane);
}

fn row_of_column(row: u32, col: u32) -> f32 {
    var sums: array<f32, SOURCES>;
    var squares = 0.0;
    for (var g = 0u; g < params.groups; g++) {
        let values = x_values(col, g);
        for (var s = 0u; s < SOURCES; s++) {
            var weights = array<vec4<f32>, 8>();
            let source = source_row(row, s);
            weights_load32(params.weights_group + source * params.groups + g, &weights);
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                sums[s] += dot(weights[k], values[k]);
            }
        }
        if NORMED {
            squares += x_squares(col, g);
        }
    }
    let factor = norm_factor(squares);
    return joined(sums[0] * factor, sums[SOURCES - 1u] * factor);
}
