// table[t, i] = (cos, sin)(positions[axes[i], t] · frequencies[i]) · magnitude: each pair
// turns by one of several positions of its token.
// @import lib/rope/cos_sin
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, pairs: u32, tokens: u32, count: u32, positions_offset: u32, frequencies_offset: u32,
    axes_offset: u32, magnitude: f32,
}

@group(0) @binding(0) var<storage, read> positions: array<i32>;
@group(0) @binding(1) var<storage, read> frequencies: array<f32>;
@group(0) @binding(2) var<storage, read> axes: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let pair = i % params.pairs;
    let axis = min(u32(max(axes[params.axes_offset + pair], 0)), params.count - 1u);
    let at = params.positions_offset + axis * params.tokens + i / params.pairs;
    let angle = f32(positions[at]) * frequencies[params.frequencies_offset + pair];
    y[i] = cos_sin(angle) * params.magnitude;
}
