// y[n, i] = sine and y[n, half + i] = cosine of t[n] · frequencies[i] · scale, or the other way
// round: a thread for each angle. The last of an odd row is 0.
// @import formats/load/f32 as t
// @import lib/rope/sine
// @import lib/index/grid

const WG: u32 = 64u;
const COSINE_FIRST: bool = false;

struct Params {
    count: u32, half: u32, dim: u32, t_offset: u32, t_step: u32, frequencies_offset: u32, scale: f32,
}

@group(0) @binding(0) var<storage, read> frequencies: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let index = grid_index(id, groups, WG);
    if index >= params.count {
        return;
    }
    let width = max(params.half, params.dim % 2u);  // of a row of one value, which has no angle
    let row = index / width;
    let i = index % width;
    if i == 0u && params.dim % 2u == 1u {
        y[row * params.dim + params.dim - 1u] = 0.0;
    }
    if i >= params.half {
        return;
    }
    let time = t_load(params.t_offset + row * params.t_step);
    let angle = vec4<f32>(time * frequencies[params.frequencies_offset + i] * params.scale);
    let first = sine(angle, select(0u, 1u, COSINE_FIRST)).x;
    let second = sine(angle, select(1u, 0u, COSINE_FIRST)).x;
    y[row * params.dim + i] = first;
    y[row * params.dim + params.half + i] = second;
}
