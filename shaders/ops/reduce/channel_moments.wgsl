// y[n, part, c] = mean of a channel over the positions of a part, and the sum of squared distances
// from it (Welford 1962): a thread for each, or for four channels that are a vector in storage.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import lib/index/grid

const WG: u32 = 64u;
const VECTOR: bool = true;

struct Params {
    count: u32, parts: u32, part: u32, positions: u32, channels: u32, blocks: u32, x_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(1) var<uniform> params: Params;

fn values_at(i: u32) -> vec4<f32> {
    if VECTOR {
        return vec4s_load4(i / 4u);
    }
    return vec4<f32>(x_load(i), 0.0, 0.0, 0.0);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.count {
        return;
    }
    let row = i / params.blocks;
    let channel = (i % params.blocks) * select(1u, 4u, VECTOR);
    let first = (row % params.parts) * params.part;
    let end = min(first + params.part, params.positions);
    let picture = (row / params.parts) * params.positions;
    var means = vec4<f32>();
    var squares = vec4<f32>();
    for (var at = first; at < end; at++) {
        let values = values_at(params.x_offset + (picture + at) * params.channels + channel);
        let differences = values - means;
        means += differences * (1.0 / f32(at - first + 1u));
        squares += differences * (values - means);
    }
    let out = row * params.channels + channel;
    for (var k = 0u; k < select(1u, 4u, VECTOR); k++) {
        y[out + k] = vec2<f32>(means[k], squares[k]);
    }
}
