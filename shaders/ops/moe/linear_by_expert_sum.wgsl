// y[t, m] = factor · sum_u shares[t, u] · (weights[ids[t, u], m] · x[t, u]) + addend[t, m]: a work group
// takes ROWS rows of all experts that a token chose. Its lanes stride over groups of 32 values, those of
// one expert behind those of another, and a tree sums them.
// @import formats/dequant/f32 as weights
// @import formats/vec4/f32 as x
// @import formats/load/f32 as shares
// @import lib/linear/no_bias as addend
// @import lib/experts/expert_of
// @import lib/index/grid
// @import lib/reduce/lane_sums

const WG: u32 = 64u;
const ROWS: u32 = 2u;
const SUMS: u32 = ROWS;
const ADDS: bool = false;

// Experts lie one below the other, from row `skipped` of the weight on.
struct Params {
    m: u32, groups: u32, experts: u32, used: u32, x_used: u32, row_groups: u32, skipped: u32, tokens: u32,
    x_offset: u32, ids_offset: u32, shares_offset: u32, addend_offset: u32, factor: f32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    if index < params.tokens * params.row_groups {
        compute(index / params.row_groups, index % params.row_groups * ROWS, lane);
    }
}

fn compute(token: u32, row: u32, lane: u32) {
    var sums: array<f32, SUMS>;
    for (var i = lane; i < params.used * params.groups; i += WG) {
        let u = i / params.groups;
        let g = i % params.groups;
        let pair = token * params.used + u;
        let expert = expert_of(pair);
        if expert < params.experts {
            let share = shares_load(params.shares_offset + pair);
            let x_row = token * params.x_used + u % params.x_used;
            let x_at = params.x_offset / 4u + (x_row * params.groups + g) * 8u;
            for (var r = 0u; r < ROWS; r++) {
                if row + r < params.m {
                    let weight_row = params.skipped + expert * params.m + row + r;
                    sums[r] += share * dot32(weight_row * params.groups + g, x_at);
                }
            }
        }
    }
    add_up_lanes(&sums, lane);
    let own = row + lane;
    if lane < ROWS && own < params.m {
        var value = lane_sum(lane) * params.factor;
        if ADDS {
            value += addend_load(params.addend_offset + token * params.m + own);
        }
        y[token * params.m + own] = value;
    }
}

// A group of 32 weights times as many values.
fn dot32(group: u32, x_at: u32) -> f32 {
    var values: array<vec4<f32>, 8>;
    weights_load32(group, &values);
    var part = vec4<f32>(0.0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        part += values[k] * x_load4(x_at + k);
    }
    return part.x + part.y + part.z + part.w;
}
