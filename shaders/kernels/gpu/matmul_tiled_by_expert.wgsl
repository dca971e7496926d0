// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for many tokens: a work group makes TILE_M rows
// of one expert for up to TILE_N of the pairs of a token and this expert, which expert_tiles.wgsl lists.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import lib/experts/tiles as ids
// @import lib/experts/expert_task
// @import kernels/gpu/lib/tile_f32 as tile

const TASK_ROWS: u32 = TILE_M;

// Of each column of the tile, its pair.
var<workgroup> pairs: array<u32, TILE_N>;

fn compute_task(task: Task, lane: u32) {
    // Surplus columns repeat the last of all pairs; they are not stored.
    for (var i = lane; i < TILE_N; i += WG) {
        pairs[i] = ids_pair(task.tile, i);
    }
    workgroupBarrier();
    let row = lane % LANE_ROWS;
    let col = lane / LANE_ROWS * COLS;
    let starts = starts_of(task, lane);
    var sums: array<f32, SUMS>;
    put_slab(brought(starts, 0u), lane);
    for (var g = 1u; g <= params.groups; g++) {
        workgroupBarrier();
        // The last iteration loads its own slab again.
        let slab = brought(starts, min(g, params.groups - 1u));
        multiply(row, col, &sums);
        workgroupBarrier();
        put_slab(slab, lane);
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            put(task, r * LANE_ROWS + row, pairs[col + c], sums[r * COLS + c]);
        }
    }
}

fn starts_of(task: Task, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        // Surplus rows repeat the last one and are not stored.
        starts.w[j] = min(task.local + lane + j * WG, params.weights_rows - 1u) * params.groups;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        starts.x[j] = params.x_offset / 4u + x_row(pairs[i_j / SHARES]) * params.groups * 8u + i_j % SHARES;
    }
    return starts;
}
