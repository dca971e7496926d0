// y[n, m] = sum_k weights[m, k] · x[n, k] for many columns, by matrix units: each subgroup of a work
// group sums RM by RN matrices of results, from rows and columns that lie in workgroup memory as f16,
// 32 values of k at a time. Sums are in f32. A column of x is divided by a power of two, its exponent
// lies behind it; a weight is multiplied by one that keeps small values precise.
// @import formats/dequant/f32 as weights
// @import formats/load/f32 as addend
// @import lib/linear/addend
// @import lib/linear/gated
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile_w
// @import lib/matrix/dawn_tile as tile_x
// @import lib/matrix/dawn_sums as results
// @import kernels/gpu/lib/unit_products
// @import kernels/gpu/lib/unit_slabs
// @import kernels/gpu/lib/k_range

const RESULTS: u32 = 4u;       // matrices of results along rows: RM, or half of them where halves are joined

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    part_groups: u32, addend_offset: u32, addend_stride: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile_w: array<vec4<f16>, TILE_M * STRIDE>;
var<workgroup> tile_x: array<vec4<f16>, TILE_N * STRIDE>;
var<workgroup> results: array<f32, DOWN * ACROSS * 2u * MATRIX>;  // of each subgroup: a matrix, and its other half

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = row_tile(group) * (TILE_M / halves());
    let first_col = group.x * TILE_N;
    let own = lane / SUBGROUP;
    let row = own / ACROSS * BLOCK_M;
    let col = own % ACROSS * BLOCK_N;
    let starts = starts_of(first_row, first_col, lane);
    var sums: array<MatrixSums, RM * RN>;
    let begin = first_group(group);
    let end = end_group(begin);
    put_slab(brought(starts, begin), lane);
    for (var g = begin + 1u; g <= end; g++) {
        workgroupBarrier();
        // The last iteration loads its own slab again.
        let slab = brought(starts, min(g, end - 1u));
        multiply(row, col, &sums);
        workgroupBarrier();
        put_slab(slab, lane);
    }
    // Matrices are stored one by one through workgroup memory, because WGSL leaves open which lane
    // holds which value.
    let first = first_result(group);
    let block = own / ACROSS * (BLOCK_M / halves());
    let at = own * 2u * MATRIX;
    // @unroll
    for (var j = 0u; j < RN; j++) {
        // @unroll
        for (var i = 0u; i < RESULTS; i++) {
            workgroupBarrier();
            results_put_columns(at, sums[i * RN + j], MAT_M);
            if GATED {
                results_put_columns(at + MATRIX, sums[(i + RM / 2u) % RM * RN + j], MAT_M);
            }
            workgroupBarrier();
            for (var v = lane % SUBGROUP; v < MATRIX; v += SUBGROUP) {
                let row_v = first_row + block + i * MAT_M + v % MAT_M;
                let col_v = first_col + col + j * MAT_N + v / MAT_M;
                if row_v < result_rows() && col_v < params.n {
                    let power = power_of(col_v) / W_SCALE;
                    let sum = joined(results[at + v] * power, results[at + MATRIX + v] * power);
                    y[first + col_v * params.m + params.first_row + row_v] = added(col_v, params.first_row + row_v, sum);
                }
            }
        }
    }
}

// Rows of the weight that make one row of the result.
fn halves() -> u32 {
    return select(1u, 2u, GATED);
}

// Row of the weight at place `i` of a tile: of each subgroup's rows the first half is of the gate.
fn tile_row(first_row: u32, i: u32) -> u32 {
    if GATED {
        let r = i % BLOCK_M;
        let half = BLOCK_M / 2u;
        return source_row(first_row + i / BLOCK_M * half + r % half, r / half);
    }
    return source_row(first_row + i, 0u);
}

fn starts_of(first_row: u32, first_col: u32, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        // Surplus threads load the last row, which they do not put.
        let i_j = min(lane + j * WG, TILE_M - 1u);
        starts.w[j] = params.weights_group + tile_row(first_row, i_j) * params.groups;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        // Neighbouring threads read neighbouring vectors. Surplus columns repeat the last one.
        let v_j = min(lane + j * WG, TILE_N * 8u - 1u);
        let col_j = min(first_col + v_j / 8u, params.n - 1u);
        starts.x[j] = column_start(col_j) + v_j % 8u;
    }
    return starts;
}
