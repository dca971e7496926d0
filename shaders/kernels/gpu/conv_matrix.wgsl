// y[pixel, m] = sum over taps and channels of weights[m, tap, c] · x: a product as in
// matmul_matrix, whose columns are the input patches of pixels. x is in f16, all divided by one
// power of two; behind it lies a pixel of zeros, which taps before and after the border look at,
// and the exponent of that power (see f16_pixels).
// @import formats/dequant/f16 as weights
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile_w
// @import lib/matrix/dawn_tile as tile_x
// @import lib/matrix/dawn_sums as results
// @import kernels/gpu/lib/unit_products

const PLACES: u32 = 1u;        // pixels whose places a thread finds

struct Params {
    m: u32, n: u32, groups: u32, tap_groups: u32, weights_rows: u32, weights_group: u32, x_vectors: u32,
    x_batch: u32, x_depth: u32, x_height: u32, x_width: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> tile_w: array<vec4<f16>, TILE_M * STRIDE>;
var<workgroup> tile_x: array<vec4<f16>, TILE_N * STRIDE>;
var<workgroup> starts: array<u32, TILE_N>;                   // of what pixels look at with this tap, in vectors
var<workgroup> results: array<f32, DOWN * ACROSS * MATRIX>;  // a matrix of each subgroup

struct Slab { w: array<array<vec4<f32>, 8>, W_ITEMS>, x: array<vec4<f16>, X_ITEMS> }
// Pixels whose places a thread finds: where the first tap falls, before the border too, and where that is, in vectors.
// What is before the first value wraps around.
struct Pixels { places: array<vec3<u32>, PLACES>, origins: array<u32, PLACES> }

@compute @workgroup_size(WG) @subgroup_size(SUBGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.y + group.z * 65535u) * TILE_M;
    let first_col = group.x * TILE_N;
    let own = lane / SUBGROUP;
    let row = own / ACROSS * BLOCK_M;
    let col = own % ACROSS * BLOCK_N;
    let pixels = pixels_of(first_col, lane);
    var rows: array<u32, W_ITEMS>;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        // Surplus rows repeat the last one, and are not stored.
        let row_j = min(first_row + min(lane + j * WG, TILE_M - 1u), params.weights_rows - 1u);
        rows[j] = params.weights_group + row_j * params.groups;
    }
    var sums: array<MatrixSums, RM * RN>;
    var tap = vec3<u32>();
    var of_tap = 0u;
    look(pixels, tap, lane);
    workgroupBarrier();
    put_slab(brought(rows, 0u, 0u, lane), lane);
    for (var g = 1u; g <= params.groups; g++) {
        // After the last slab comes a tap that does not count; it is within x, too.
        of_tap += 1u;
        if of_tap == params.tap_groups {
            of_tap = 0u;
            tap = behind(tap);
            workgroupBarrier();
            look(pixels, tap, lane);
        }
        workgroupBarrier();
        let slab = brought(rows, min(g, params.groups - 1u), of_tap, lane);
        multiply(row, col, &sums);
        workgroupBarrier();
        put_slab(slab, lane);
    }
    // Matrices are stored one by one through workgroup memory, because WGSL leaves open which lane
    // holds which value.
    let exponent = x[params.x_vectors + params.tap_groups * 8u].x;
    // exp2 may be off by a bit.
    let power = bitcast<f32>(u32(i32(exponent) + 127) << 23u) / W_SCALE;
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

fn behind(tap: vec3<u32>) -> vec3<u32> {
    if tap.z + 1u < params.kernel.w {
        return vec3<u32>(tap.xy, tap.z + 1u);
    }
    if tap.y + 1u < params.kernel.z {
        return vec3<u32>(tap.x, tap.y + 1u, 0u);
    }
    return vec3<u32>(tap.x + 1u, 0u, 0u);
}

fn vectors_to(place: vec3<u32>) -> u32 {
    let way = place * (vec3<u32>(params.x_depth, params.x_height, params.x_width) / 4u);
    return way.x + way.y + way.z;
}

fn pixels_of(first_col: u32, lane: u32) -> Pixels {
    var pixels: Pixels;
    // @unroll
    for (var j = 0u; j < PLACES; j++) {
        // Surplus pixels repeat the last one, and are not stored.
        let pixel_j = min(first_col + lane + j * WG, params.n - 1u);
        let line_j = pixel_j / params.out.w;
        let plane_j = line_j / params.out.z;
        let at_j = vec3<u32>(plane_j % params.out.y, line_j % params.out.z, pixel_j % params.out.w);
        pixels.places[j] = at_j * params.step.yzw - params.before.yzw;
        pixels.origins[j] = plane_j / params.out.y * (params.x_batch / 4u) + vectors_to(pixels.places[j]);
    }
    return pixels;
}

// Find the input values of a tap for each pixel.
fn look(pixels: Pixels, tap: vec3<u32>, lane: u32) {
    let reach = tap * params.dilation.yzw;
    let way = vectors_to(reach);
    // @unroll
    for (var j = 0u; j < PLACES; j++) {
        let i_j = lane + j * WG;
        if TILE_N % WG == 0u || i_j < TILE_N {
            let inside_j = all(pixels.places[j] + reach < params.size.yzw);
            starts[i_j] = select(params.x_vectors, pixels.origins[j] + way, inside_j);
        }
    }
}

// The items of a thread: group `g` of rows, group `of_tap` of the channels of a tap.
fn brought(rows: array<u32, W_ITEMS>, g: u32, of_tap: u32, lane: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        var values_j: array<vec4<f32>, 8>;
        weights_load32(rows[j] + g, &values_j);
        slab.w[j] = values_j;
    }
    let own = of_tap * 8u + lane % 8u;
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        // Neighbouring threads read neighbouring vectors; surplus ones read some pixel.
        slab.x[j] = x[starts[min(lane + j * WG, TILE_N * 8u - 1u) / 8u] + own];
    }
    return slab;
}

fn put_slab(slab: Slab, lane: u32) {
    put_rows(slab.w, lane);
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let v_j = lane + j * WG;
        if TILE_N * 8u % WG == 0u || v_j < TILE_N * 8u {
            tile_x[v_j / 8u * STRIDE + v_j % 8u] = slab.x[j];
        }
    }
}
