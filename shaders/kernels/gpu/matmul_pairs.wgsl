// y[n, m] = sum_k weights[m, k] · x[n, k] for many columns, in pairs of f16 that hold two rows each. A work
// group makes TILE_M rows by TILE_N columns, SLAB groups of 32 values of k at a time through workgroup
// memory: the first values of k of all rows (columns) lie together, then all second ones. A thread reads
// eight rows and eight columns of one k in two loads. Weights are integers, or scaled to a few units; the
// scale of a group comes in when its sums go into f32. f16_columns has divided a column of x by one power
// of two.
// @import formats/int8/q4_0 as weights
// @import formats/load/f32 as addend
// @import kernels/gpu/table/none as table
// @import kernels/gpu/lib/pair_rows_bytes as rows
// @import kernels/gpu/result/numbers as y
// @import lib/linear/added
// @import lib/linear/gated
// @import kernels/gpu/lib/k_range
// @import kernels/gpu/lib/pair_products

const AHEAD: bool = true;       // registers hold the next slab while one is multiplied

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32, part_groups: u32,
    addend_offset: u32, addend_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> tails: array<f32>;

struct Slab { w: array<rows_Item, W_ITEMS>, x: array<vec4<f16>, 2u * X_ITEMS> }
// Where the rows of a thread's items begin, in groups, and its columns, in eights.
struct Starts { w: array<vec2<u32>, W_ITEMS>, x: array<u32, X_ITEMS> }

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    table_fill(lane);
    let first_row = row_tile(group) * select(TILE_M, TILE_M / 2u, GATED);
    let first_col = group.x * TILE_N;
    let starts = starts_of(first_row, first_col, lane);
    let own = place_of(lane);
    var sums: array<f32, 64>;
    let begin = first_group(group);
    let end = end_group(begin);
    put_slab(brought(starts, begin, lane), starts, begin, lane);
    for (var g = begin; g < end; g += SLAB) {
        workgroupBarrier();
        // The last iteration loads its own slab again: in a branch the compiler would put off the loads.
        let next = min(g + SLAB, end - SLAB);
        var slab = Slab();
        if AHEAD {
            slab = brought(starts, next, lane);
        }
        multiply(own, &sums);
        workgroupBarrier();
        if !AHEAD {
            slab = brought(starts, next, lane);
        }
        put_slab(slab, starts, next, lane);
    }
    // @unroll
    for (var c = 0u; c < 8u; c++) {
        let col_c = first_col + own.y * 8u + c;
        if col_c < params.n {
            let power_c = tails[params.groups * 128u * eights() + col_c];
            let low_c = power_c * vec4<f32>(sums[c], sums[8u + c], sums[16u + c], sums[24u + c]);
            let high_c = power_c * vec4<f32>(sums[32u + c], sums[40u + c], sums[48u + c], sums[56u + c]);
            put_results(first_result(group), col_c, first_row, own.x, low_c, high_c);
        }
    }
}

// Eights of columns, to which they are filled up: from one k of x to the next.
fn eights() -> u32 {
    return (params.n + 7u) / 8u;
}

fn put_results(first: u32, col: u32, first_row: u32, own: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = first + col * params.m + params.first_row;
    if GATED {
        let row = first_row + own * 4u;
        let gate = vec4<f32>(gate_act(low.x), gate_act(low.y), gate_act(low.z), gate_act(low.w));
        put_four(at, col, row, gate * high);
    } else {
        let row = first_row + own * 8u;
        put_four(at, col, row, low);
        put_four(at, col, row + 4u, high);
    }
}

fn put_four(at: u32, col: u32, row: u32, sums: vec4<f32>) {
    let rows = result_rows();
    if row + 4u <= rows {
        var values = sums;
        if ADDS {
            values += addend_load4(params.addend_offset + col * params.addend_stride + params.first_row + row);
        }
        y_put4(at + row, values);
    } else {
        // @unroll
        for (var i = 0u; i < 4u; i++) {
            if row + i < rows {
                y_put(at + row + i, added(col, params.first_row + row + i, sums[i]));
            }
        }
    }
}

// Row of the weight at place `i` of a tile. Of a thread's eight rows, the last four are of the projection up
// where halves are joined. Surplus rows repeat the last one, and are not stored.
fn source_of(first_row: u32, i: u32) -> u32 {
    if GATED {
        return source_row(first_row + i / 8u * 4u + i % 4u, i / 4u % 2u);
    }
    return source_row(first_row + i, 0u);
}

fn starts_of(first_row: u32, first_col: u32, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        let row_j = i_j / HALVES * 2u;
        let s_j = params.weights_group + i_j % HALVES / 2u;
        starts.w[j] = vec2<u32>(
            source_of(first_row, row_j) * params.groups + s_j,
            source_of(first_row, row_j + 1u) * params.groups + s_j,
        );
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        // Surplus columns repeat the last ones, and are not stored.
        let eight_j = min(first_col / 8u + i_j % (TILE_N / 8u), eights() - 1u);
        starts.x[j] = i_j / (TILE_N / 8u) * eights() + eight_j;
    }
    return starts;
}

fn brought(starts: Starts, g: u32, lane: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        slab.w[j] = rows_item(starts.w[j] + vec2<u32>(g), (lane + j * WG) % 2u);
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let at_j = starts.x[j] + g * 32u * eights();
        slab.x[2u * j] = x[2u * at_j];
        slab.x[2u * j + 1u] = x[2u * at_j + 1u];
    }
    return slab;
}

fn put_slab(slab: Slab, starts: Starts, g: u32, lane: u32) {
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        let half_j = i_j % HALVES;
        put_rows(rows_half(slab.w[j], starts.w[j] + vec2<u32>(g), g + half_j / 2u, half_j % 2u), half_j, i_j / HALVES);
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        let i_j = lane + j * WG;
        tile_x[2u * i_j] = slab.x[2u * j];
        tile_x[2u * i_j + 1u] = slab.x[2u * j + 1u];
    }
}
