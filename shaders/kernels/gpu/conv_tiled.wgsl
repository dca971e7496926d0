// y[pixel, m] = sum over taps and channels of weights[m, tap, c] · x: a product of tiles as in
// matmul_tiled, whose columns are what pixels look at. Nothing lays these side by side: of each tap,
// 32 channels at a time go from where they are into workgroup memory, zeros beyond the border.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import kernels/gpu/lib/tile_f32 as tile

const AHEAD: bool = true;        // registers hold the next slab while one is multiplied

struct Params {
    m: u32, n: u32, groups: u32, tap_groups: u32, weights_rows: u32, weights_group: u32,
    x_offset: u32, x_batch: u32, x_depth: u32, x_height: u32, x_width: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// Of the pixels whose channels a thread brings: where the first tap falls, before the border too, and
// where its channels lie, in vectors. What is before the first value wraps around.
struct Pixels {
    places: array<vec3<u32>, X_ITEMS>,
    origins: array<u32, X_ITEMS>,
}
// Where channels of a tap lie for each of these pixels, and whether they are of x.
struct Seen { starts: array<u32, X_ITEMS>, inside: array<bool, X_ITEMS> }

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
        let pixel_j = min(first_col + (lane + j * WG) / SHARES, params.n - 1u);
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
    return params.x_offset / 4u + lane % SHARES;
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
fn channels(starts: array<u32, W_ITEMS>, seen: Seen, g: u32, of_tap: u32) -> Slab {
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
