// y[n, m] = sum_k weights[m, k] · x[n, k] for devices whose lanes are a CPU's and tell each other
// values: as mulmat_lanes, but lane i of eight loads the i-th four of 32 values of x, which the others
// are told, since a rasteriser makes one load of eight lanes eight loads. A lane takes SOURCES rows of
// weights and COLS columns, and makes ROWS rows of y: as many, or half of that where two are joined,
// unless those take turns, in PASSES. Rows of x that lack the factor of a norm have its squares behind
// their values.
// @import lib/blocks/groups_of_32 as source
// @import formats/load/f32 as addend
// @import lib/linear/added
// @import lib/linear/gated
// @import lib/index/grid
// @import lib/q8/normed
// @import lib/numeric/raised
// @import lib/linear/squares
// @import kernels/rasteriser/lib/rows_in_strips as own
// @import kernels/rasteriser/epilogue/f32_values as ending

const WG: u32 = 8u;
const ROWS: u32 = 2u;
const SOURCES: u32 = 2u;
const BUNCH: u32 = 2u;           // rows that are loaded before they are multiplied
const BUNCHES: u32 = 1u;         // of SOURCES
const COLS: u32 = 1u;
const PASSES: u32 = 1u;

struct Params {
    m: u32, n: u32, groups: u32, first_row: u32, weights_rows: u32, weights_group: u32,
    x_offset: u32, addend_offset: u32, addend_stride: u32, scale_offset: u32, eps: f32,
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
    let first_col = group.z * COLS;
    // Parameters are loaded outside of loops, where a rasteriser would load them in every turn.
    let turns = params.groups;
    var columns: array<u32, COLS>;
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        let col_c = min(first_col + c, params.n - 1u);
        columns[c] = params.x_offset / 4u + col_c * (turns * 8u + norm_quads(turns)) + lane;
    }
    var sums: array<f32, PASSES * SOURCES * COLS>;
    // @unroll
    for (var source = 0u; source < PASSES; source++) {
        var starts: array<u32, SOURCES>;
        // @unroll
        for (var r = 0u; r < SOURCES; r++) {
            let row_r = source_row(own_row(index, lane, r % ROWS), source + r / ROWS);
            starts[r] = weight_start(row_r, turns, source_PARTS);
        }
        for (var g = 0u; g < turns; g++) {
            var fours: array<vec4<f32>, COLS>;
            // @unroll
            for (var c = 0u; c < COLS; c++) {
                fours[c] = four(columns[c] + g * 8u);
            }
            // Not unrolled: its machine code would not stay in a core's caches.
            for (var p = 0u; p < source_PARTS; p++) {
                // @unroll
                for (var b = 0u; b < BUNCHES; b++) {
                    var values: array<array<vec4<f32>, source_QUADS>, BUNCH>;
                    // @unroll
                    for (var r = 0u; r < BUNCH; r++) {
                        var row_values: array<vec4<f32>, source_QUADS>;
                        source_part(starts[b * BUNCH + r] + (g * source_PARTS + p) * PART_STEP, &row_values);
                        values[r] = row_values;
                    }
                    // @unroll
                    for (var k = 0u; k < source_QUADS; k++) {
                        // @unroll
                        for (var c = 0u; c < COLS; c++) {
                            let x_k = subgroupShuffle(fours[c], p * source_QUADS + k);
                            // @unroll
                            for (var r = 0u; r < BUNCH; r++) {
                                sums[(source * SOURCES + b * BUNCH + r) * COLS + c] += dot(values[r][k], x_k);
                            }
                        }
                    }
                }
            }
        }
    }
    let factor = norm_factor(squares(min(first_col + lane, params.n - 1u), turns));
    // @unroll
    for (var c = 0u; c < COLS; c++) {
        if first_col + c < params.n {
            let factor_c = told_factor(factor, c);
            var values: array<f32, ROWS>;
            // @unroll
            for (var r = 0u; r < ROWS; r++) {
                let last_r = raised(sums[(r + PASSES * SOURCES - ROWS) * COLS + c]);
                values[r] = joined(raised(sums[r * COLS + c]) * factor_c, last_r * factor_c);
            }
            ending_put(first_col + c, index, lane, values);
        }
    }
}

// Vectors of squares behind a row of x of so many groups.
fn norm_quads(groups: u32) -> u32 {
    return select(0u, square_quads(groups * 32u), NORMED);
}

// Sum of squares of a row of x: each lane has a row of its own, one of a column.
fn squares(col: u32, turns: u32) -> f32 {
    let quads = norm_quads(turns);
    let place = params.x_offset / 4u + col * (turns * 8u + quads) + turns * 8u;
    var sum = vec4<f32>(0.0);
    for (var q = 0u; q < quads; q++) {
        sum += quad(place + q);
    }
    return dot(sum, vec4<f32>(1.0));
}

// Factor of a column, from the lane that has it.
fn told_factor(factor: f32, col: u32) -> f32 {
    if NORMED {
        return subgroupShuffle(factor, col);
    }
    return 1.0;
}

// Four values of x, of which a lane has its own.
fn four(place: u32) -> vec4<f32> {
    return raised4(quad(place));
}

fn quad(place: u32) -> vec4<f32> {
    let words = x[place];
    let low = vec2<u32>(u32(words.x), u32(words.x >> 32u));
    let high = vec2<u32>(u32(words.y), u32(words.y >> 32u));
    return bitcast<vec4<f32>>(vec4<u32>(low, high));
}
