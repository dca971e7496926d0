// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight bits, for many columns: a
// work group makes a tile of 64 rows by 32 columns, a group of 32 values of k at a time through
// workgroup memory; a thread sums 8 rows by 4 columns. Of a weight whose halves are joined, a thread
// has 4 rows of each half, and the tile makes 32 rows of y.
// @import dot/q4_0 as weights
// @import column/own as x
// @import load/f32 as addend
// @import lib/product
// @import lib/addend
// @import lib/gated
// @import lib/normed
// @import lib/parts
// @import lib/gated_tile

const WG: u32 = 64u;
const TILE_M: u32 = 64u;
const TILE_N: u32 = 32u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// Three vectors of words each: quants twice, then scales. Rows of four vectors would meet in banks.
var<workgroup> tile_w: array<vec4<u32>, 192>;
// Of a column the factors twice, then scale and sums.
var<workgroup> tile_low: array<Factors, TILE_N>;
var<workgroup> tile_high: array<Factors, TILE_N>;
var<workgroup> tile_sums: array<vec4<f32>, TILE_N>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_row = (group.x + group.z * 65535u) * result_count(TILE_M);
    let first_col = group.y * TILE_N;
    let rows = (lane % 8u) * 8u;
    let cols = (lane / 8u) * 4u;
    // Eight rows, and the squares of each column.
    var sums: array<vec4<f32>, 9>;
    for (var g = 0u; g < params.groups; g++) {
        load_weights(first_row, g, lane);
        load_x(first_col, g, lane);
        workgroupBarrier();
        multiply(rows, cols, &sums);
        workgroupBarrier();
    }
    for (var r = 0u; r < result_count(8u); r++) {
        let row = first_row + result_count(rows) + r;
        for (var c = 0u; c < 4u; c++) {
            let col = first_col + cols + c;
            if row < result_rows() && col < params.n && c % PARTS == 0u {
                let factor = norm_factor(sums[8][c]);
                let value = joined(whole(sums[r], c) * factor, whole(sums[(r + 4u) % 8u], c) * factor);
                store(col / PARTS, params.first_row + row, value);
            }
        }
    }
}

fn whole(parts: vec4<f32>, first: u32) -> f32 {
    var sum = parts[first];
    for (var part = 1u; part < PARTS; part++) {
        sum += parts[first + part];
    }
    return sum;
}

// A thread brings one row. Surplus rows repeat the last one and are not stored.
fn load_weights(first_row: u32, g: u32, lane: u32) {
    let at = params.weights_group + tile_row(first_row, lane) * params.groups + g;
    let values = weights_group(at, weights_head(at), at % weights_SPAN);
    tile_w[lane * 3u] = values.low;
    tile_w[lane * 3u + 1u] = values.high;
    tile_w[lane * 3u + 2u] = bitcast<vec4<u32>>(vec4<f32>(values.scale, values.minimum));
}

fn load_x(first_col: u32, g: u32, lane: u32) {
    if lane < TILE_N {
        let col = min(first_col + lane, params.n - 1u);
        let values = x_column(params.x_offset / 12u + col * params.groups + g, lane);
        tile_low[lane] = values.low;
        tile_high[lane] = values.high;
        tile_sums[lane] = vec4<f32>(values.scale, values.sum, values.first, values.squares);
    }
}

fn column_at(col: u32) -> Column {
    let sums = tile_sums[col];
    return Column(tile_low[col], tile_high[col], sums.x, sums.y, sums.z, sums.w);
}

fn multiply(rows: u32, cols: u32, sums: ptr<function, array<vec4<f32>, 9>>) {
    let x0 = column_at(cols);
    let x1 = column_at(cols + 1u);
    let x2 = column_at(cols + 2u);
    let x3 = column_at(cols + 3u);
    (*sums)[8] += vec4<f32>(x0.squares, x1.squares, x2.squares, x3.squares);
    // @unroll
    for (var r = 0u; r < 8u; r++) {
        let at_r = (rows + r) * 3u;
        let tail_r = bitcast<vec4<f32>>(tile_w[at_r + 2u]);
        let w_r = Group(tile_w[at_r], tile_w[at_r + 1u], tail_r.xy, tail_r.zw);
        (*sums)[r] += vec4<f32>(product(w_r, x0), product(w_r, x1), product(w_r, x2), product(w_r, x3));
    }
}
