// y[b, n, m] = sum_k a[b, m, k] · x[b, n, k] for plain tensors of any strides, one value a thread.
// Batch axes of `a` repeat: each serves `x_batch / a_batch` batches of x, as heads share keys.
// @import formats/load/f32 as a
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, m: u32, n: u32, k: u32, a_offset: u32, x_offset: u32,
    batch: vec4<u32>, repeats: vec4<u32>, a_strides: vec4<u32>, x_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let row = i % params.m;
    let col = (i / params.m) % params.n;
    let batch = i / params.m / params.n;
    let inner = batch % params.batch.y;
    let outer = batch / params.batch.y;
    var at_a = params.a_offset + row * params.a_strides.z
        + (outer / params.repeats.x) * params.a_strides.x + (inner / params.repeats.y) * params.a_strides.y;
    var at_x = params.x_offset + col * params.x_strides.z
        + outer * params.x_strides.x + inner * params.x_strides.y;
    var sum = 0.0;
    for (var k = 0u; k < params.k; k++) {
        sum += a_load(at_a) * x_load(at_x);
        at_a += params.a_strides.w;
        at_x += params.x_strides.w;
    }
    y[i] = sum;
}
