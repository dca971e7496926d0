// y[t, u, m] = sum_k weights[ids[t, u], m, k] · x[t, u, k] for many tokens: a work group makes 64 rows
// of one expert for up to 32 of the pairs of a token and this expert, which expert_tiles.wgsl lists.
// @import quant/f32 as weights
// @import vec4/f32 as x
// @import chosen/tiles as ids
// @import lib/expert_task
// @import lib/register_tile

const WG: u32 = 64u;
const TASK_ROWS: u32 = 64u;
const TILE_N: u32 = 32u;

// Of each column of the tile, its pair and where its values of x begin.
var<workgroup> pairs: array<u32, TILE_N>;
var<workgroup> starts: array<u32, TILE_N>;

fn compute_task(task: Task, lane: u32) {
    find_columns(task.tile, lane);
    workgroupBarrier();
    let rows = (lane % 8u) * 8u;
    let cols = (lane / 8u) * 4u;
    var sums: array<vec4<f32>, 8>;
    // Surplus rows repeat the last one and are not stored.
    let own_row = min(task.local + lane, params.weights_rows - 1u) * params.groups;
    for (var g = 0u; g < params.groups; g++) {
        bring_weights(own_row + g, lane);
        for (var i = lane; i < TILE_N * 8u; i += WG) {
            tile_x[(i / 8u) * 9u + i % 8u] = x_load4(starts[i / 8u] + g * 8u + i % 8u);
        }
        workgroupBarrier();
        multiply(rows, cols, &sums);
        workgroupBarrier();
    }
    for (var r = 0u; r < 8u; r++) {
        for (var c = 0u; c < 4u; c++) {
            put(task, rows + r, pairs[cols + c], sums[r][c]);
        }
    }
}

// Surplus columns repeat the last of all pairs; they are not stored.
fn find_columns(tile: u32, lane: u32) {
    if lane < TILE_N {
        pairs[lane] = ids_pair(tile, lane);
        starts[lane] = params.x_offset / 4u + x_row(pairs[lane]) * params.groups * 8u;
    }
}
