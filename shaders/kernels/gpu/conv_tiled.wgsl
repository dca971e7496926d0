// y[pixel, m] = sum over taps and channels of weights[m, tap, c] · x: a product of tiles as in
// matmul_tiled, whose columns are the input patches of pixels. No im2col matrix is made: of each
// tap, 32 channels at a time go from where they are into workgroup memory, zeros beyond the border.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import kernels/gpu/lib/tile_f32 as tile
// @import kernels/gpu/lib/pixels

const AHEAD: bool = true;        // registers hold the next slab while one is multiplied

struct Params {
    m: u32, n: u32, groups: u32, tap_groups: u32, weights_rows: u32, weights_group: u32,
    x_offset: u32, x_batch: u32, x_depth: u32, x_height: u32, x_width: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.y + group.z * 65535u) * TILE_M;
    let first_col = group.x * TILE_N;
    let row = lane % LANE_ROWS;
    let col = lane / LANE_ROWS * COLS;
    let pixels = pixels_of(first_col, lane);
    var starts: array<u32, W_ITEMS>;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        starts[j] = params.weights_group + tile_row(first_row, lane + j * WG) * params.groups;
    }
    var sums: array<f32, SUMS>;
    var tap = vec3<u32>();
    var of_tap = 0u;
    var seen = seen_by(pixels, tap, lane);
    put_slab(channels(starts, seen, 0u, of_tap), lane);
    for (var g = 1u; g <= params.groups; g++) {
        workgroupBarrier();
        // The last iteration loads its own slab again.
        if g < params.groups {
            of_tap += 1u;
            if of_tap == params.tap_groups {
                of_tap = 0u;
                tap = behind(tap);
                seen = seen_by(pixels, tap, lane);
            }
        }
        let next = min(g, params.groups - 1u);
        var slab = Slab();
        if AHEAD {
            slab = channels(starts, seen, next, of_tap);
        }
        multiply(row, col, &sums);
        workgroupBarrier();
        if !AHEAD {
            slab = channels(starts, seen, next, of_tap);
        }
        put_slab(slab, lane);
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = first_row + r * LANE_ROWS + row;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let pixel_c = first_col + col + c;
            if row_r < params.weights_rows && pixel_c < params.n {
                y[pixel_c * params.m + row_r] = sums[r * COLS + c];
            }
        }
    }
}
