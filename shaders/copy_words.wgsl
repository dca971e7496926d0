// y = x: each thread copies every `threads`-th vector, so that neighbours read neighbouring bytes.
// @import lib/index/grid

const WG: u32 = 256u;

struct Params { vectors: u32, threads: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    for (var i = grid_index(id, groups, WG); i < params.vectors; i += params.threads) {
        y[i] = x[i];
    }
}
