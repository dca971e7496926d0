// y[i, m, n] = sum_k a[lhs[i], m, k] · b[rhs[i], k, n] of any strides: a value a thread.
// @import formats/load/f32 as a
// @import formats/load/f32 as b
// @import formats/load/i32 as lhs
// @import formats/load/i32 as rhs
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    count: u32, m: u32, n: u32, k: u32, lhs_count: u32, rhs_count: u32, a_offset: u32, b_offset: u32,
    lhs_offset: u32, rhs_offset: u32, a_steps: vec4<u32>, b_steps: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let row = i / params.n;
    let batch = row / params.m;
    let a_matrix = min(u32(lhs_load(params.lhs_offset + batch)), params.lhs_count - 1u);
    let b_matrix = min(u32(rhs_load(params.rhs_offset + batch)), params.rhs_count - 1u);
    var a_at = params.a_offset + a_matrix * params.a_steps.x + row % params.m * params.a_steps.y;
    var b_at = params.b_offset + b_matrix * params.b_steps.x + i % params.n * params.b_steps.z;
    var sum = 0.0;
    for (var k = 0u; k < params.k; k++) {
        sum += a_load(a_at) * b_load(b_at);
        a_at += params.a_steps.z;
        b_at += params.b_steps.y;
    }
    y[i] = sum;
}
