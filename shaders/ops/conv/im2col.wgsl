// y[n, h, w, (kh, kw, c)] = x[n, h · step + kh · dilation - before, …, c]: what each pixel of a
// convolution looks at, side by side; zeros beyond the border. One value a thread.
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    values: u32, channels: u32, x_offset: u32, x_shape: vec4<u32>, x_strides: vec4<u32>,
    out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>, dilation: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.values {
        return;
    }
    let tap = i / params.channels;
    let pixel = tap / (params.kernel.z * params.kernel.w);
    let row = pixel / params.out.w;
    let kernel_at = vec2<u32>((tap / params.kernel.w) % params.kernel.z, tap % params.kernel.w);
    let at = vec2<u32>(row % params.out.z, pixel % params.out.w);
    // What lies before the first value wraps around to large numbers.
    let origin = at * params.step.zw + kernel_at * params.dilation.zw - params.before.zw;
    var value = 0.0;
    if all(origin < params.x_shape.yz) {
        let steps = vec4<u32>(row / params.out.z, origin, i % params.channels) * params.x_strides;
        value = x_load(params.x_offset + steps.x + steps.y + steps.z + steps.w);
    }
    y[i] = value;
}
