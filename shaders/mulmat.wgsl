// y[n, m] = sum_k weights[m, k] · x[n, k] for many columns: a work group makes a tile of 64 rows by
// 32 columns, 32 values of k at a time through workgroup memory; a thread sums 8 rows by 4 columns.
// Of a weight whose halves are joined, a thread has 4 rows of each, and a tile makes 32 rows of y.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import load/f32 as addend
// @import lib/addend
// @import lib/gated
// @import lib/gated_tile
// @import lib/register_tile

const WG: u32 = 64u;
const TILE_M: u32 = 64u;
const TILE_N: u32 = 32u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.x + group.z * 65535u) * result_count(TILE_M);
    let first_col = group.y * TILE_N;
    let rows = (lane % 8u) * 8u;
    let cols = (lane / 8u) * 4u;
    var sums: array<vec4<f32>, 8>;
    // Surplus rows and columns repeat the last one and are not stored.
    let own_row = params.weights_group + tile_row(first_row, lane) * params.groups;
    for (var g = 0u; g < params.groups; g++) {
        bring_weights(own_row + g, lane);
        load_x(first_col, g, lane);
        workgroupBarrier();
        multiply(rows, cols, &sums);
        workgroupBarrier();
    }
    for (var r = 0u; r < result_count(8u); r++) {
        let row = first_row + result_count(rows) + r;
        for (var c = 0u; c < 4u; c++) {
            let col = first_col + cols + c;
            if row < result_rows() && col < params.n {
                store(col, params.first_row + row, joined(sums[r][c], sums[(r + 4u) % 8u][c]));
            }
        }
    }
}

fn load_x(first_col: u32, g: u32, lane: u32) {
    for (var i = lane; i < TILE_N * 8u; i += WG) {
        let col = min(first_col + i / 8u, params.n - 1u);
        let at = params.x_offset / 4u + (col * params.groups + g) * 8u + i % 8u;
        tile_x[(i / 8u) * 9u + i % 8u] = x_load4(at);
    }
}
