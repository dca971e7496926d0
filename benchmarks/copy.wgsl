// y = x, vector by vector: what a kernel that only moves memory reaches.
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { vectors: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.vectors {
        y[i] = x[i];
    }
}
