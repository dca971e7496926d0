// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for many tokens by matrix units, as matmul_matrix has them: a
// work group makes TILE_M rows of one expert for up to TILE_N of the pairs of a token and this expert, which
// expert_tiles.wgsl lists.
// @import formats/dequant/f32 as weights
// @import lib/experts/tiles as ids
// @import lib/experts/task
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile_w
// @import lib/matrix/dawn_tile as tile_x
// @import lib/matrix/dawn_sums as results
// @import kernels/gpu/lib/unit_products
// @import kernels/gpu/lib/unit_slabs

const TASK_ROWS: u32 = TILE_M;

@group(0) @binding(0) var<storage, read> x: array<vec4<f16>>;

var<workgroup> tile_w: array<vec4<f16>, TILE_M * STRIDE>;
var<workgroup> tile_x: array<vec4<f16>, TILE_N * STRIDE>;
var<workgroup> results: array<f32, DOWN * ACROSS * MATRIX>;  // a matrix of each subgroup
// Of each column of the tile its pair, and the power of two that its sums lack.
var<workgroup> pairs: array<u32, TILE_N>;
var<workgroup> powers: array<f32, TILE_N>;

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let task = task_of(group_index(group, groups));
    if task.is_there {
        compute_task(task, lane);
    }
}

fn compute_task(task: Task, lane: u32) {
    // Surplus columns repeat the last of all pairs; they are not stored.
    for (var i = lane; i < TILE_N; i += WG) {
        let pair = ids_pair(task.tile, i);
        pairs[i] = pair;
        powers[i] = power_of(x_row(pair)) / W_SCALE;
    }
    workgroupBarrier();
    let own = lane / SUBGROUP;
    let row = own / ACROSS * BLOCK_M;
    let col = own % ACROSS * BLOCK_N;
    let starts = starts_of(task, lane);
    var sums: array<MatrixSums, RM * RN>;
    put_slab(brought(starts, 0u), lane);
    for (var g = 1u; g <= params.groups; g++) {
        workgroupBarrier();
        // The last iteration loads its own slab again.
        let slab = brought(starts, min(g, params.groups - 1u));
        multiply(row, col, &sums);
        workgroupBarrier();
        put_slab(slab, lane);
    }
    // Matrices go to storage one by one, as only workgroup memory knows which lane has which value.
    let at = own * MATRIX;
    // @unroll
    for (var j = 0u; j < RN; j++) {
        // @unroll
        for (var i = 0u; i < RM; i++) {
            workgroupBarrier();
            results_put_columns(at, sums[i * RN + j], MAT_M);
            workgroupBarrier();
            for (var v = lane % SUBGROUP; v < MATRIX; v += SUBGROUP) {
                let col_v = col + j * MAT_N + v / MAT_M;
                put(task, row + i * MAT_M + v % MAT_M, pairs[col_v], results[at + v] * powers[col_v]);
            }
        }
    }
}

fn starts_of(task: Task, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        // Surplus rows repeat the last one and are not stored, nor do surplus threads put theirs.
        let row_j = task.local + min(lane + j * WG, TILE_M - 1u);
        starts.w[j] = min(row_j, params.weights_rows - 1u) * params.groups;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let v_j = min(lane + j * WG, TILE_N * 8u - 1u);
        starts.x[j] = column_start(x_row(pairs[v_j / 8u])) + v_j % 8u;
    }
    return starts;
}
