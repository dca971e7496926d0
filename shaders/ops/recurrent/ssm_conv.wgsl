// y[s, t, c] = sum_k x[s, c, t + k] · weight[c, k]: each channel's kernel slides over its own
// values.
// @import formats/load/f32 as x
// @import formats/load/f32 as weight
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, tokens: u32, channels: u32, taps: u32, x_offset: u32, weight_offset: u32,
    x_strides: vec4<u32>, weight_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let channel = i % params.channels;
    let row = i / params.channels;
    let at = vec3<u32>(row / params.tokens, channel, row % params.tokens) * params.x_strides.yzw;
    var source = params.x_offset + at.x + at.y + at.z;
    var tap = params.weight_offset + channel * params.weight_strides.z;
    var sum = 0.0;
    for (var k = 0u; k < params.taps; k++) {
        sum += x_load(source) * weight_load(tap);
        source += params.x_strides.w;
        tap += params.weight_strides.w;
    }
    y[i] = sum;
}
