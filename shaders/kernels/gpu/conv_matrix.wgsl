// y[pixel, m] = sum over taps and channels of weights[m, tap, c] · x: a product as in matmul_matrix, whose columns
// are what pixels look at, as in conv_tiled. All of x is divided by one power of two, by its largest magnitude.
// @import formats/dequant/f16 as weights
// @import formats/vec4/f32 as x
// @import formats/load/f32 as magnitudes
// @import lib/matrix/dawn as matrix
// @import lib/matrix/dawn_tile as tile_w
// @import lib/matrix/dawn_tile as tile_x
// @import lib/matrix/dawn_sums as results

const SUBGROUP: u32 = 32u;
const DOWN: u32 = 2u;          // subgroups of a work group, along rows
const ACROSS: u32 = 2u;        // along columns
const RM: u32 = 4u;            // matrices of a subgroup, along rows
const RN: u32 = 2u;            // along columns
const STEPS: u32 = 2u;         // of MAT_K values, in 32
const W_ITEMS: u32 = 1u;       // rows that a thread brings, 32 values of each
const X_ITEMS: u32 = 4u;       // vectors of four values that a thread brings
const W_SCALE: f32 = 1.0;
const WG: u32 = DOWN * ACROSS * SUBGROUP;
const BLOCK_M: u32 = RM * MAT_M;  // of a subgroup
const BLOCK_N: u32 = RN * MAT_N;
const TILE_M: u32 = DOWN * BLOCK_M;
const TILE_N: u32 = ACROSS * BLOCK_N;
const STRIDE: u32 = 10u;       // vectors from a row to the next: eight, and two against bank conflicts
const MATRIX: u32 = MAT_M * MAT_N;

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
// Of the pixels whose channels a thread brings: where the first tap falls, before the border too, and
// where its channels lie, in vectors. What is before the first value wraps around.
struct Pixels { places: array<vec3<u32>, X_ITEMS>, origins: array<u32, X_ITEMS> }
// Where channels of a tap lie for each of these pixels, and whether they are of x.
struct Seen { starts: array<u32, X_ITEMS>, inside: array<bool, X_ITEMS> }

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
    var rows: array<MatrixRows, RM>;
    var tap = vec3<u32>();
    var of_tap = 0u;
    var seen = seen_by(pixels, tap, lane);
    put_slab(brought(starts, seen, 0u, of_tap), inverse, lane);
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
        let slab = brought(starts, seen, min(g, params.groups - 1u), of_tap);
        // @unroll
        for (var k = 0u; k < STEPS; k++) {
            let at_k = k * (MAT_K / 4u);
            // @unroll
            for (var i = 0u; i < RM; i++) {
                rows[i] = tile_w_rows((row + i * MAT_M) * STRIDE + at_k, STRIDE);
            }
            // @unroll
            for (var j = 0u; j < RN; j++) {
                let column_j = tile_x_columns((col + j * MAT_N) * STRIDE + at_k, STRIDE);
                // @unroll
                for (var i = 0u; i < RM; i++) {
                    sums[i * RN + j] = multiply_add(rows[i], column_j, sums[i * RN + j]);
                }
            }
        }
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

fn behind(tap: vec3<u32>) -> vec3<u32> {
    if tap.z + 1u < params.kernel.w {
        return vec3<u32>(tap.xy, tap.z + 1u);
    }
    if tap.y + 1u < params.kernel.z {
        return vec3<u32>(tap.x, tap.y + 1u, 0u);
    }
    return vec3<u32>(tap.x + 1u, 0u, 0u);
}

fn steps() -> vec3<u32> {
    return vec3<u32>(params.x_depth, params.x_height, params.x_width) / 4u;
}

fn pixels_of(first_col: u32, lane: u32) -> Pixels {
    var pixels: Pixels;
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        // Surplus pixels repeat the last one, and are not stored.
        let pixel_j = min(first_col + min(lane + j * WG, TILE_N * 8u - 1u) / 8u, params.n - 1u);
        let line_j = pixel_j / params.out.w;
        let plane_j = line_j / params.out.z;
        let at_j = vec3<u32>(plane_j % params.out.y, line_j % params.out.z, pixel_j % params.out.w);
        pixels.places[j] = at_j * params.step.yzw - params.before.yzw;
        let way_j = pixels.places[j] * steps();
        pixels.origins[j] = first_vector(lane) + plane_j / params.out.y * (params.x_batch / 4u)
            + way_j.x + way_j.y + way_j.z;
    }
    return pixels;
}

fn first_vector(lane: u32) -> u32 {
    return params.x_offset / 4u + lane % 8u;
}

fn seen_by(pixels: Pixels, tap: vec3<u32>, lane: u32) -> Seen {
    var seen: Seen;
    let reach = tap * params.dilation.yzw;
    let way = reach * steps();
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        seen.inside[j] = all(pixels.places[j] + reach < params.size.yzw);
        let start_j = pixels.origins[j] + way.x + way.y + way.z;
        seen.starts[j] = select(first_vector(lane), start_j, seen.inside[j]);
    }
    return seen;
}

// What a thread brings of a slab: group `g` of rows, group `of_tap` of the channels of a tap.
fn brought(starts: array<u32, W_ITEMS>, seen: Seen, g: u32, of_tap: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        var values_j: array<vec4<f32>, 8>;
        weights_load32(starts[j] + g, &values_j);
        slab.w[j] = values_j;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let values_j = x_load4(seen.starts[j] + of_tap * 8u);
        slab.x[j] = select(vec4<f32>(), values_j, seen.inside[j]);
    }
    return slab;
}

fn put_slab(slab: Slab, inverse: f32, lane: u32) {
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        if TILE_M % WG == 0u || i_j < TILE_M {
            // @unroll
            for (var k = 0u; k < 8u; k++) {
                tile_w[i_j * STRIDE + k] = vec4<f16>(slab.w[j][k] * W_SCALE);
            }
        }
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let v_j = lane + j * WG;
        if TILE_N * 8u % WG == 0u || v_j < TILE_N * 8u {
            tile_x[v_j / 8u * STRIDE + v_j % 8u] = vec4<f16>(slab.x[j] * inverse);
        }
    }
}
