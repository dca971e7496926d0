// y[b, m, n] = sum_k x[lhs[b], m, k] · w[rhs[b], k, n], w in codes along n: a thread makes eight values
// of a row.
// @import lib/packed/affine as weights
// @import formats/load/f32 as x
// @import formats/load/i32 as lhs
// @import formats/load/i32 as rhs
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    count: u32, m: u32, n: u32, k: u32, words: u32, groups: u32, lhs_count: u32, rhs_count: u32,
    x_offset: u32, packed_offset: u32, scales_offset: u32, biases_offset: u32, lhs_offset: u32,
    rhs_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let n = i % (params.n / 8u) * 8u;
    let row = i / (params.n / 8u);
    let batch = row / params.m;
    let x_matrix = min(u32(lhs_load(params.lhs_offset + batch)), params.lhs_count - 1u);
    let w_matrix = min(u32(rhs_load(params.rhs_offset + batch)), params.rhs_count - 1u);
    let start = params.x_offset + (x_matrix * params.m + row % params.m) * params.k;
    var low = vec4<f32>();
    var high = vec4<f32>();
    for (var k = 0u; k < params.k; k++) {
        let values = weights8(w_matrix * params.k + k, n);
        let factor = x_load(start + k);
        low += factor * values.low;
        high += factor * values.high;
    }
    y[2u * i] = low;
    y[2u * i + 1u] = high;
}
