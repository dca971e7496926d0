// y[n, h, w, c] = sum of all x[n, oh, ow, (kh, kw, c)] that im2col took from there: one value a
// thread, which asks each tap for the window that saw it.
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    values: u32, x_offset: u32, out: vec4<u32>, columns: vec4<u32>, kernel: vec4<u32>,
    step: vec4<u32>, before: vec4<u32>, dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.values {
        return;
    }
    let channel = i % params.out.w;
    let pixel = i / params.out.w;
    let row = pixel / params.out.z;
    let at = vec2<u32>(row % params.out.y, pixel % params.out.z) + params.before.zw;
    let picture = (row / params.out.y) * params.columns.y;
    var sum = 0.0;
    for (var h = 0u; h < params.kernel.z; h++) {
        for (var w = 0u; w < params.kernel.w; w++) {
            // What lies before the first window wraps around to large numbers.
            let from_first = at - vec2<u32>(h, w) * params.dilation.zw;
            let window = from_first / params.step.zw;
            let met = all(window * params.step.zw == from_first);
            if met && all(window < params.columns.yz) {
                let place = (picture + window.x) * params.columns.z + window.y;
                let tap = (h * params.kernel.w + w) * params.out.w + channel;
                sum += x_load(params.x_offset + place * params.columns.w + tap);
            }
        }
    }
    y[i] = sum;
}
