// y[t, m] = factor · sum_u shares[t, u] · (weights[ids[t, u], m] · x[t, u]) + addend[t, m] for a
// few tokens: a work group takes ROWS rows of all experts that a token chose. Its lanes stride over
// shares of a row, those of one expert behind those of another, and load the words of all rows
// before they unpack any.
// @import kernels/gpu/share/values as share
// @import formats/vec4/f32 as x
// @import formats/load/f32 as shares
// @import lib/linear/no_bias as addend
// @import lib/experts/expert_of
// @import lib/index/grid
// @import kernels/gpu/prologue/values as prologue
// @import kernels/gpu/table/none as table
// @import kernels/gpu/lib/lane_sums_workgroup as lanes

const WG: u32 = 64u;
const LANES: u32 = WG;
const ROWS: u32 = 4u;
const SUMS: u32 = 4u;
const ADDS: bool = false;

// Experts lie one below the other, from row `skipped` of the weight on.
struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32, tokens: u32,
    x_offset: u32, ids_offset: u32, shares_offset: u32, addend_offset: u32, factor: f32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

fn compute(group: vec3<u32>, groups: vec3<u32>, lane: u32) {
    table_fill(lane);
    let index = group_index(group, groups);
    // Surplus work groups repeat the last token, as all lanes exchange values, and store nothing.
    let token = min(index / params.row_groups, params.tokens - 1u);
    let row = index % params.row_groups * ROWS;
    var sums: array<f32, SUMS>;
    let length = params.groups * 8u / share_VECTORS;
    for (var i = lane; i < params.used * length; i += WG) {
        let pair = token * params.used + i / length;
        let expert = expert_of(pair);
        if expert < params.experts {
            add_products(token, pair, expert, row, i % length, lane, &sums);
        }
    }
    lanes_add_up(&sums, lane);
    let own = row + lane;
    if lane < ROWS && own < params.m && index < params.tokens * params.row_groups {
        var value = lanes_sum(0u, lane) * params.factor;
        if ADDS {
            value += addend_load(params.addend_offset + token * params.m + own);
        }
        y[token * params.m + own] = value;
    }
}

// Share `i` of the rows of one expert.
fn add_products(
    token: u32, pair: u32, expert: u32, row: u32, i: u32, lane: u32,
    sums: ptr<function, array<f32, SUMS>>,
) {
    let length = params.groups * 8u / share_VECTORS;
    let first = params.skipped + expert * params.m;
    var words: array<weights_Words, ROWS>;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        words[r] = weights_words((first + min(row + r, params.m - 1u)) * length + i);
    }
    let x_row = token * params.x_used + pair % params.used % params.x_used;
    let column = params.x_offset / 4u + x_row * params.groups * 8u;
    let values = share_column(column + i * share_VECTORS, i * share_VECTORS);
    let share = shares_load(params.shares_offset + pair);
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let at_r = (first + min(row + r, params.m - 1u)) * length + i;
        (*sums)[r] = fma(share, share_product(words[r], at_r, lane, values, 0.0), (*sums)[r]);
    }
}
