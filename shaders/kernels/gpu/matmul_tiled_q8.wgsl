// y[n, m] = sum_k weights[m, k] · x[n, k], weights in blocks and x in eight bits, for many columns: a
// work group makes a tile of TILE_M rows by TILE_N columns, SLAB groups of 32 values of k at a time
// through workgroup memory. While a slab is multiplied, the next one is on its way into registers.
//
// Formats whose quants have a zero other than 0 say it as OFFSET: a sum of products then starts at
// -OFFSET times the sum of the column's quants. Others that have a minimum say MINIMA.
// @import formats/int8/q4_0 as weights
// @import lib/q8/packed_column as x
// @import formats/load/f32 as addend
// @import kernels/gpu/table/none as table
// @import lib/linear/addend
// @import lib/q8/normed
// @import lib/q8/parts
// @import kernels/gpu/lib/tile_place

const SLAB: u32 = 1u;
const OFFSET: u32 = 8u;
const MINIMA: bool = false;
const SCALES: u32 = 2u;          // numbers of a group of weights: scales, minima, of halves twice
const TAILS: u32 = 3u;           // of a group of a column: its scale, and what minima need
const W_ITEMS: u32 = 1u;         // groups of a slab that a thread brings
const X_ITEMS: u32 = 1u;
const FUSED: bool = false;       // fma rounds once
// The bits of this number and an integer below 2^22, added up, are those of the sum of the two.
const ZERO: f32 = 12582912.0;
const W_PLANE: u32 = 2u * TILE_M + 4u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, x_offset: u32,
    addend_offset: u32, addend_stride: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

// First halves of groups, then second ones.
var<workgroup> tile_w: array<vec4<u32>, SLAB * W_PLANE>;
var<workgroup> tile_x: array<vec4<u32>, SLAB * 2u * TILE_N>;
var<workgroup> scales: array<f32, SLAB * SCALES * TILE_M>;
var<workgroup> tails: array<f32, SLAB * TAILS * TILE_N>;

// Words of weights stay packed until their slab is put: these are fewer registers.
struct Slab { w: array<weights_Words, W_ITEMS>, x: array<Column, X_ITEMS> }
// Where the groups of an item begin.
struct Starts { w: array<u32, W_ITEMS>, x: array<u32, X_ITEMS> }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    table_fill(lane);
    let first_row = (group.y + group.z * 65535u) * result_count(TILE_M);
    let first_col = group.x * TILE_N;
    let starts = starts_of(first_row, first_col, lane);
    let row = lane % LANE_ROWS;
    let col = lane / LANE_ROWS * COLS;
    var sums: array<f32, SUMS>;
    var squares: array<f32, X_ITEMS>;
    put_slab(brought(starts, 0u, lane), starts, 0u, lane, &squares);
    for (var g = 0u; g < params.groups; g += SLAB) {
        workgroupBarrier();
        // The last turn brings its own slab again, and counts it as nothing.
        let next = g + SLAB;
        let slab = brought(starts, min(next, params.groups - SLAB), lane);
        multiply(row, col, &sums);
        workgroupBarrier();
        if next < params.groups {
            put_slab(slab, starts, next, lane, &squares);
        }
    }
    workgroupBarrier();
    var factors: array<f32, COLS>;
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        if NORMED && lane + j * WG < TILE_N * SLAB {
            tails[lane + j * WG] = squares[j];
        }
    }
    workgroupBarrier();
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        factors[c] = norm_factor(squares_of(col + c));
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = first_row + r * LANE_ROWS + row;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let inside_rc = row_r < result_rows() && first_col + col + c < params.n;
            if r < result_count(ROWS) && c % PARTS == 0u && inside_rc {
                let value_rc = whole(&sums, r * COLS + c) * factors[c];
                let other_rc = whole(&sums, (r + ROWS / 2u) % ROWS * COLS + c) * factors[c];
                store((first_col + col + c) / PARTS, params.first_row + row_r, joined(value_rc, other_rc));
            }
        }
    }
}

fn squares_of(col: u32) -> f32 {
    var sum = 0.0;
    if NORMED {
        // @unroll
        for (var s = 0u; s < SLAB; s++) {
            sum += tails[col * SLAB + s];
        }
    }
    return sum;
}

fn whole(sums: ptr<function, array<f32, SUMS>>, first: u32) -> f32 {
    var sum = (*sums)[first];
    for (var part = 1u; part < PARTS; part++) {
        sum += (*sums)[first + part];
    }
    return sum;
}

fn starts_of(first_row: u32, first_col: u32, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        starts.w[j] = params.weights_group + tile_row(first_row, i_j / SLAB) * params.groups + i_j % SLAB;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        // Surplus columns repeat the last one, and are not stored.
        let col_j = min(first_col + i_j / SLAB, params.n - 1u);
        starts.x[j] = params.x_offset / 12u + col_j * params.groups + i_j % SLAB;
    }
    return starts;
}

// The items of a thread in the slab that begins with group `g` of each row.
fn brought(starts: Starts, g: u32, lane: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        slab.w[j] = weights_words(starts.w[j] + g);
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        slab.x[j] = x_column(starts.x[j] + g, lane);
    }
    return slab;
}

fn put_slab(
    slab: Slab, starts: Starts, g: u32, lane: u32, squares: ptr<function, array<f32, X_ITEMS>>,
) {
    // Where a group stands in a super-block: all items of a thread stand alike.
    let place = weights_place(lane % SLAB + g);
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        if TILE_M * SLAB % WG == 0u || lane + j * WG < TILE_M * SLAB {
            put_weights(weights_group(slab.w[j], starts.w[j] + g, place), lane + j * WG);
        }
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        (*squares)[j] += slab.x[j].squares;
        if lane + j * WG < TILE_N * SLAB {
            put_column(slab.x[j], lane + j * WG);
        }
    }
}

fn put_weights(w: Group, i: u32) {
    let row = i / SLAB;
    let at = i % SLAB * W_PLANE + row;
    tile_w[at] = w.low;
    tile_w[at + TILE_M] = w.high;
    let place = i % SLAB * SCALES * TILE_M + plane_place(row);
    scales[place] = w.scale.x;
    if weights_HALVES {
        scales[place + TILE_M] = w.scale.y;
    }
    if MINIMA {
        scales[place + (SCALES - 1u) * TILE_M] = -w.minimum.y;
        if weights_HALVES {
            scales[place + (max(SCALES, 2u) - 2u) * TILE_M] = -w.minimum.x;
        }
    }
}

fn put_column(x: Column, i: u32) {
    let col = i / SLAB;
    let at = i % SLAB * 2u * TILE_N + col;
    tile_x[at] = x.low;
    tile_x[at + TILE_N] = x.high;
    let place = i % SLAB * TAILS * TILE_N + col;
    tails[place] = x.scale;
    if MINIMA {
        if weights_HALVES {
            tails[place + TILE_N] = x.first;
            tails[place + (TAILS - 1u) * TILE_N] = x.sum - x.first;
        } else {
            tails[place + TILE_N] = x.sum;
        }
    }
    if OFFSET > 0u {
        let ones = vec4<u32>(0x01010101u);
        let zero = bitcast<i32>(ZERO);
        let low = zero - i32(OFFSET) * dot16(x.low, ones, 0);
        if weights_HALVES {
            tails[place + TILE_N] = bitcast<f32>(low);
            tails[place + (TAILS - 1u) * TILE_N] = bitcast<f32>(zero - i32(OFFSET) * dot16(x.high, ones, 0));
        } else {
            tails[place + TILE_N] = bitcast<f32>(low - i32(OFFSET) * dot16(x.high, ones, 0));
        }
    }
}

fn dot16(a: vec4<u32>, b: vec4<u32>, start: i32) -> i32 {
    var sum = start + dot4I8Packed(a.x, b.x);
    sum += dot4I8Packed(a.y, b.y);
    sum += dot4I8Packed(a.z, b.z);
    return sum + dot4I8Packed(a.w, b.w);
}

// Integers of all sums wait side by side: each waits for what it was before, and a word of x, which
// some hardware takes apart into bytes, is done with soon.
fn multiply(row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var s = 0u; s < SLAB; s++) {
        var dots: array<i32, SUMS>;
        begin_dots(s, 1u, col, &dots);
        add_dots(s * 2u * TILE_N + col, s * W_PLANE + row, &dots);
        if weights_HALVES {
            add_products(s, 0u, row, col, &dots, sums);
            begin_dots(s, TAILS - 1u, col, &dots);
        }
        add_dots((s * 2u + 1u) * TILE_N + col, s * W_PLANE + TILE_M + row, &dots);
        add_products(s, select(0u, 1u, weights_HALVES), row, col, &dots, sums);
        if MINIMA {
            add_minima(s, 1u, SCALES / 2u, row, col, sums);
            if weights_HALVES {
                add_minima(s, TAILS - 1u, SCALES - 1u, row, col, sums);
            }
        }
    }
}

fn begin_dots(s: u32, plane: u32, col: u32, dots: ptr<function, array<i32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            (*dots)[r * COLS + c] = start_of(s, plane, col + c);
        }
    }
}

// Adds sums of integers, times the scales of their rows, in a plane, and columns.
fn add_products(
    s: u32, plane: u32, row: u32, col: u32,
    dots: ptr<function, array<i32, SUMS>>, sums: ptr<function, array<f32, SUMS>>,
) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let scale_r = scale_at(s, plane, r, row);
        let zero_r = ZERO * scale_r;
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let dot_c = bitcast<f32>((*dots)[r * COLS + c]);
            // The difference needs no instruction of its own where it is rounded once. It is exact there,
            // too: a scale has few bits.
            let fused_c = fma(dot_c, scale_r, -zero_r);
            let value_c = select((dot_c - ZERO) * scale_r, fused_c, FUSED);
            (*sums)[r * COLS + c] = fma(value_c, tail_at(s, 0u, col + c), (*sums)[r * COLS + c]);
        }
    }
}

fn add_minima(s: u32, tail: u32, scale: u32, row: u32, col: u32, sums: ptr<function, array<f32, SUMS>>) {
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let minimum_r = scale_at(s, scale, r, row);
        // @unroll
        for (var c = 0u; c < COLS; c++) {
            let sum_c = (*sums)[r * COLS + c];
            (*sums)[r * COLS + c] = fma(tail_at(s, tail, col + c), minimum_r, sum_c);
        }
    }
}

// Adds the products of 16 weights and values, from vectors at these places on.
fn add_dots(x_at: u32, w_at: u32, dots: ptr<function, array<i32, SUMS>>) {
    var x: array<vec4<u32>, COLS>;
    var w: array<vec4<u32>, ROWS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        x[c] = tile_x[x_at + c];
    }
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        w[r] = tile_w[w_at + r * LANE_ROWS];
    }
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        // @unroll
        for (var r = 0u; r < ROWS; r++) {
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                (*dots)[r * COLS + c] += dot4I8Packed(w[r][k], x[c][k]);
            }
        }
    }
}

// A number of a group: of the scales of a thread's row, of the tails of a column.
fn scale_at(s: u32, plane: u32, r: u32, row: u32) -> f32 {
    return scales[(s * SCALES + plane) * TILE_M + (r / 4u * LANE_ROWS + row) * 4u + r % 4u];
}

fn tail_at(s: u32, plane: u32, col: u32) -> f32 {
    return tails[(s * TAILS + plane) * TILE_N + col];
}

fn start_of(s: u32, plane: u32, col: u32) -> i32 {
    if OFFSET > 0u {
        return bitcast<i32>(tail_at(s, plane, col));
    }
    return bitcast<i32>(ZERO);
}
