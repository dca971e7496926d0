// y[n, m] = sum_k weights[m, k] · x[n, k] for devices whose lanes are a CPU's and shuffle values:
// as matmul, but lane i of eight loads the i-th vec4 of 32 values of x, and subgroup shuffles hand it
// to the others, since a rasteriser makes one load of eight lanes eight loads. A lane takes SOURCES rows
// of weights and COLS columns, and makes ROWS rows of y: as many, or half of that where two are joined,
// unless one follows the other, each with x read anew (X_READS). Rows of x that lack the factor of a
// norm have its squares behind their values.
// @import lib/blocks/groups_of_32 as source
// @import formats/load/f32 as addend
// @import lib/linear/added
// @import lib/linear/gated
// @import lib/index/grid
// @import lib/q8/normed
// @import lib/numeric/raised
// @import lib/linear/squares
// @import kernels/rasteriser/lib/row_mapping_interleaved as row_mapping
// @import kernels/rasteriser/epilogue/f32_values as lane_epilogue

const WG: u32 = 8u;
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const ROWS_PER_LOAD: u32 = 2u;   // rows that are loaded before they are multiplied
const LOADS: u32 = 1u;           // of all SOURCES
const COLS: u32 = 1u;
const X_READS: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32,
    x_offset: u32, addend_offset: u32, addend_stride: u32, scale_offset: u32, eps: f32,
    first_group_z: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec2<u64>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

// Surplus rows and columns repeat the last one; they are not stored. Weights come in parts of
// groups.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    let first_col = (params.first_group_z + group.z) * COLS;
    // Parameters are loaded outside of loops, where a rasteriser would load them in every iteration.
    let row_length = params.groups;
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(first_col + c, params.n - 1u);
        columns[c] = params.x_offset / 4u + col_c * (row_length * 8u + norm_vec4s(row_length)) + lane;
    }
    var sums: array<f32, X_READS * SOURCES * COLS>;
    // @unroll
    for (var source = 0u; source < X_READS; source++) {
        var starts: array<u32, SOURCES>;
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            let row_r = source_row(row_mapping_row(index, lane, r % ROWS), source + r / ROWS);
            starts[r] = weight_start(row_r, row_length, source_PARTS);
        }
        for (var g = 0u; g < row_length; g++) {
            var vec4s = array<vec4<f32>, COLS>();
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                vec4s[c] = x_raised(columns[c] + g * 8u);
            }
            // Not unrolled: its machine code would not stay in a core's caches.
            for (var p = 0u; p < source_PARTS; p++) {
                // @unroll
                for (var b = 0u; b < LOADS; b++) {
                    var values = array<array<vec4<f32>, source_VEC4S>, ROWS_PER_LOAD>();
                    // @unroll
                    for (var r = 0u; r < ROWS_PER_LOAD; r++) {
                        var row_values = array<vec4<f32>, source_VEC4S>();
                        source_part(starts[b * ROWS_PER_LOAD + r] + (g * source_PARTS + p) * PART_STEP, &row_values);
                        values[r] = row_values;
                    }
                    // @unroll
                    for (var k = 0u; k < source_VEC4S; k++) {
                        // @unroll
                        for (var c = 0u; c < COLS; c++) {
                            let x_k = subgroupShuffle(vec4s[c], p * source_VEC4S + k);
                            // @unroll
                            for (var r = 0u; r < ROWS_PER_LOAD; r++) {
                                sums[(source * SOURCES + b * ROWS_PER_LOAD + r) * COLS + c] += dot(values[r][k], x_k);
                            }
                        }
                    }
                }
            }
        }
    }
    let factor = norm_factor(squares(min(first_col + lane, params.n - 1u), row_length));
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        if first_col + c < params.n {
            let factor_c = factor_of(factor, c);
            var values: array<f32, ROWS>;
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let last_r = raised(sums[(r + X_READS * SOURCES - ROWS) * COLS + c]);
                values[r] = joined(raised(sums[r * COLS + c]) * factor_c, last_r * factor_c);
            }
            lane_epilogue_put(first_col + c, index, lane, values);
        }
    }
}

// Vectors of squares behind a row of x of so many groups.
fn norm_vec4s(groups: u32) -> u32 {
    return select(0u, square_vec4s(groups * 32u), NORMED);
}

// Sum of squares of a row of x: each lane has a row of its own, one of a column.
fn squares(col: u32, row_length: u32) -> f32 {
    let vec4s = norm_vec4s(row_length);
    let place = params.x_offset / 4u + col * (row_length * 8u + vec4s) + row_length * 8u;
    var sum = vec4<f32>(0.0);
    for (var q = 0u; q < vec4s; q++) {
        sum += x_vec4(place + q);
    }
    return dot(sum, vec4<f32>(1.0));
}

// Factor of a column, from the lane that has it.
fn factor_of(factor: f32, col: u32) -> f32 {
    if NORMED {
        return subgroupShuffle(factor, col);
    }
    return 1.0;
}

// Four values of x, of which a lane has its own.
fn x_raised(place: u32) -> vec4<f32> {
    return raised4(x_vec4(place));
}

fn x_vec4(place: u32) -> vec4<f32> {
    let words = x[place];
    let low = vec2<u32>(u32(words.x), u32(words.x >> 32u));
    let high = vec2<u32>(u32(words.y), u32(words.y >> 32u));
    return bitcast<vec4<f32>>(vec4<u32>(low, high));
}
