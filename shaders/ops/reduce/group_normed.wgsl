// y[n, p, c] = (x - mean of the group) · 1 / deviation of the group · weight[c] + bias[c], then silu
// where that is asked for: a value a thread, or four channels that are a vector in storage.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import formats/load/f32 as weight
// @import formats/load/f32 as bias
// @import lib/index/grid
// @import lib/numeric/silu

const WG: u32 = 64u;
const VECTOR: bool = true;
const WEIGHTED: bool = true;
const BIASED: bool = true;
const SILU: bool = false;

struct Params {
    count: u32, picture: u32, channels: u32, groups: u32, width: u32, x_offset: u32,
    moments_offset: u32, weight_offset: u32, bias_offset: u32,
}

@group(0) @binding(0) var<storage, read> moments: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

fn values_at(i: u32) -> vec4<f32> {
    if VECTOR {
        return vec4s_load4(i / 4u);
    }
    return vec4<f32>(x_load(i), 0.0, 0.0, 0.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let index = grid_index(id, groups, WG);
    if index >= params.count {
        return;
    }
    let lanes = select(1u, 4u, VECTOR);
    let first = index * lanes;
    let channel = first % params.channels;
    let rows = params.moments_offset / 2u + (first / params.picture) * params.groups;
    var values = values_at(params.x_offset + first);
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        let at_k = min(channel + k, params.channels - 1u);
        let moments_k = moments[rows + at_k / params.width];
        values[k] = (values[k] - moments_k.x) * moments_k.y;
        if WEIGHTED {
            values[k] *= weight_load(params.weight_offset + at_k);
        }
        if BIASED {
            values[k] += bias_load(params.bias_offset + at_k);
        }
    }
    if SILU {
        values = silu(values);
    }
    for (var k = 0u; k < lanes; k++) {
        y[first + k] = values[k];
    }
}
