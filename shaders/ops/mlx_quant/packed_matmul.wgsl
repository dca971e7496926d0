// y[b, m, n] = sum_k x[lhs[b], m, k] · w[rhs[b], n, k], w in codes: eight lanes share a row of w, and
// what they unpack meets COLS rows of x.
// @import lib/packed/affine as weights
// @import formats/vec4/f32 as x
// @import formats/load/i32 as lhs
// @import formats/load/i32 as rhs
// @import lib/index/grid

const WG: u32 = 64u;
const COLS: u32 = 4u;
const LANES: u32 = 8u;

struct Params {
    batch: u32, m: u32, n: u32, k: u32, words: u32, groups: u32, lhs_count: u32, rhs_count: u32,
    row_groups: u32, column_groups: u32, x_offset: u32, packed_offset: u32, scales_offset: u32,
    biases_offset: u32, lhs_offset: u32, rhs_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> parts: array<f32, WG * COLS>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    let column_group = index % params.column_groups;
    let row_group = (index / params.column_groups) % params.row_groups;
    let batch = index / params.column_groups / params.row_groups;
    if batch >= params.batch {
        return;
    }
    let x_matrix = min(u32(lhs_load(params.lhs_offset + batch)), params.lhs_count - 1u);
    let w_matrix = min(u32(rhs_load(params.rhs_offset + batch)), params.rhs_count - 1u);
    // Surplus rows and columns repeat the last one, and are not stored.
    let n = row_group * (WG / LANES) + lane / LANES;
    let row = w_matrix * params.n + min(n, params.n - 1u);
    var starts: array<u32, COLS>;
    var sums: array<f32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(column_group * COLS + c, params.m - 1u);
        starts[c] = (params.x_offset + (x_matrix * params.m + col_c) * params.k) / 4u;
    }
    for (var at = lane % LANES * 8u; at < params.k; at += LANES * 8u) {
        let values = weights8(row, at);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let from_c = starts[c] + at / 4u;
            sums[c] += dot(values.low, x_load4(from_c)) + dot(values.high, x_load4(from_c + 1u));
        }
    }
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        parts[c * WG + lane] = sums[c];
    }
    workgroupBarrier();
    // A thread for each row and column of the group.
    for (var i = lane; i < WG / LANES * COLS; i += WG) {
        let of_row = i % (WG / LANES);
        let col = column_group * COLS + i / (WG / LANES);
        var sum = 0.0;
        for (var k = 0u; k < LANES; k++) {
            sum += parts[i / (WG / LANES) * WG + of_row * LANES + k];
        }
        let at_n = row_group * (WG / LANES) + of_row;
        if at_n < params.n && col < params.m {
            y[(batch * params.m + col) * params.n + at_n] = sum;
        }
    }
}
