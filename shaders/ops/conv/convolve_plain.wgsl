// y[n, d, h, w, o] = sum over taps and channels of x · weight, of any strides: one value a thread.
// @import formats/load/f32 as x
// @import formats/load/f32 as weights
// @import lib/index/grid
// @import lib/index/taps

const WG: u32 = 64u;

struct Params {
    values: u32, outputs: u32, group_outputs: u32, channels: u32, x_offset: u32, weights_offset: u32,
    x_batch: u32, x_depth: u32, x_height: u32, x_width: u32, x_channel: u32, weight_row: u32,
    weight_depth: u32, weight_height: u32, weight_width: u32, weight_channel: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>, spread: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.values {
        return;
    }
    let output = i % params.outputs;
    let pixel = i / params.outputs;
    let row = pixel / params.out.w;
    let plane = row / params.out.z;
    let start = vec2<u32>(plane / params.out.y, plane % params.out.y);
    let at = vec4<u32>(start, row % params.out.z, pixel % params.out.w) * params.step;
    let steps = vec4<u32>(params.x_batch, params.x_depth, params.x_height, params.x_width);
    let group = output / params.group_outputs;
    let x_at = params.x_offset + group * params.channels * params.x_channel;
    let weight_at = params.weights_offset + output * params.weight_row;
    var sum = 0.0;
    for (var d = 0u; d < params.kernel.y; d++) {
        for (var h = 0u; h < params.kernel.z; h++) {
            for (var w = 0u; w < params.kernel.w; w++) {
                let tap = vec4<u32>(0u, d, h, w);
                let origin = met(at, tap);
                if all(origin < params.size) {
                    let way = origin * steps;
                    var source = x_at + way.x + way.y + way.z + way.w;
                    let of_tap = weights_of(tap);
                    var factor = weight_at + of_tap.y * params.weight_depth
                        + of_tap.z * params.weight_height + of_tap.w * params.weight_width;
                    for (var c = 0u; c < params.channels; c++) {
                        sum += x_load(source) * weights_load(factor);
                        source += params.x_channel;
                        factor += params.weight_channel;
                    }
                }
            }
        }
    }
    y[i] = sum;
}
