// y[pixel, m] = sum over taps and channels of weights[m, tap, c] · x: a product as in matmul_matrix, whose columns
// are what pixels look at, as in conv_tiled. All of x is divided by one power of two, by its largest magnitude.
// @import formats/dequant/f16 as weights
// @import formats/vec4/f32 as x
// @import formats/load/f32 as magnitudes
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile_w
// @import lib/matrix/dawn_tile as tile_x
// @import lib/matrix/dawn_sums as results
// @import kernels/gpu/lib/unit_products
// @import kernels/gpu/lib/pixels

const SHARES: u32 = 8u;        // threads that bring a pixel's channels, a vector each

struct Params {
    m: u32, n: u32, groups: u32, tap_groups: u32, weights_rows: u32, weights_group: u32, parts: u32,
    x_offset: u32, x_batch: u32, x_depth: u32, x_height: u32, x_width: u32, magnitudes_offset: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile_w: array<vec4<f16>, TILE_M * STRIDE>;
var<workgroup> tile_x: array<vec4<f16>, TILE_N * STRIDE>;
var<workgroup> results: array<f32, DOWN * ACROSS * MATRIX>;  // a matrix of each subgroup

struct Slab { w: array<array<vec4<f32>, 8>, W_ITEMS>, x: array<vec4<f32>, X_ITEMS> }

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.y + group.z * 65535u) * TILE_M;
    let first_col = group.x * TILE_N;
    let own = lane / SUBGROUP;
    let row = own / ACROSS * BLOCK_M;
    let col = own % ACROSS * BLOCK_N;
    let exponent = exponent_of_x();
    let inverse = bitcast<f32>((268u - exponent) << 23u);
    let pixels = pixels_of(first_col, lane);
    var starts: array<u32, W_ITEMS>;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        // Surplus rows repeat the last one, and are not stored.
        let row_j = min(first_row + min(lane + j * WG, TILE_M - 1u), params.weights_rows - 1u);
        starts[j] = params.weights_group + row_j * params.groups;
    }
    var sums: array<MatrixSums, RM * RN>;
    var tap = vec3<u32>();
    var of_tap = 0u;
    var seen = seen_by(pixels, tap, lane);
    put_slab(channels(starts, seen, 0u, of_tap), inverse, lane);
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
        let slab = channels(starts, seen, min(g, params.groups - 1u), of_tap);
        multiply(row, col, &sums);
        workgroupBarrier();
        put_slab(slab, inverse, lane);
    }
    // Matrices go to storage one by one, as only workgroup memory knows which lane has which value.
    let power = bitcast<f32>((exponent - 14u) << 23u) / W_SCALE;
    let at = own * MATRIX;
    // @unroll
    for (var j = 0u; j < RN; j++) {
        // @unroll
        for (var i = 0u; i < RM; i++) {
            workgroupBarrier();
            results_put_columns(at, sums[i * RN + j], MAT_M);
            workgroupBarrier();
            for (var v = lane % SUBGROUP; v < MATRIX; v += SUBGROUP) {
                let row_v = first_row + row + i * MAT_M + v % MAT_M;
                let pixel_v = first_col + col + j * MAT_N + v / MAT_M;
                if row_v < params.weights_rows && pixel_v < params.n {
                    y[pixel_v * params.m + row_v] = results[at + v] * power;
                }
            }
        }
    }
}

// The exponent of the largest magnitude of x: divided by its power and multiplied by 2^14, x fits f16.
fn exponent_of_x() -> u32 {
    var most = 0u;
    for (var i = 0u; i < params.parts; i++) {
        most = max(most, bitcast<u32>(magnitudes_load(params.magnitudes_offset + i)));
    }
    return clamp(most >> 23u, 27u, 249u);
}

fn put_slab(slab: Slab, inverse: f32, lane: u32) {
    put_rows(slab.w, lane);
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let v_j = lane + j * WG;
        if TILE_N * 8u % WG == 0u || v_j < TILE_N * 8u {
            tile_x[v_j / 8u * STRIDE + v_j % 8u] = vec4<f16>(slab.x[j] * inverse);
        }
    }
}
