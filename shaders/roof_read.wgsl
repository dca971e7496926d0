// y[thread] = sum of every `threads`-th vector of x: x is read once and little else is done.
// @import lib/index/grid

const WG: u32 = 256u;

struct Params { vectors: u32, threads: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let thread = grid_index(id, groups, WG);
    var sum = vec4<f32>(0.0);
    for (var i = thread; i < params.vectors; i += params.threads) {
        sum += x[i];
    }
    y[thread] = sum;
}
