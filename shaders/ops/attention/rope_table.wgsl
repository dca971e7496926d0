// table[t, i] = (cos, sin)(positions[t] · frequencies[i]) · magnitude.
// @import lib/rope/cos_sin
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, pairs: u32, positions_offset: u32, frequencies_offset: u32, magnitude: f32 }

@group(0) @binding(0) var<storage, read> positions: array<i32>;
@group(0) @binding(1) var<storage, read> frequencies: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let position = f32(positions[params.positions_offset + i / params.pairs]);
    let angle = position * frequencies[params.frequencies_offset + i % params.pairs];
    y[i] = cos_sin(angle) * params.magnitude;
}
