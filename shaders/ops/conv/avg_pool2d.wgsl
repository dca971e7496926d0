// y[…, h, w] = mean over a window of x, zeros beyond the border counted as well: one value a
// thread.
// @import formats/load/f32 as x
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    size: u32, window: u32, step: u32, before: u32, x_offset: u32, x_shape: vec4<u32>,
    x_strides: vec4<u32>, out: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i >= params.size {
        return;
    }
    let row = i / params.out.w;
    let plane = row / params.out.z;
    let first = vec2<u32>(row % params.out.z, i % params.out.w) * params.step;
    let source = params.x_offset + (plane / params.out.y) * params.x_strides.x
        + (plane % params.out.y) * params.x_strides.y;
    var sum = 0.0;
    for (var h = 0u; h < params.window; h++) {
        for (var w = 0u; w < params.window; w++) {
            // What lies before the first value wraps around to large numbers.
            let at = first + vec2<u32>(h, w) - params.before;
            if all(at < params.x_shape.zw) {
                sum += x_load(source + at.x * params.x_strides.z + at.y * params.x_strides.w);
            }
        }
    }
    y[i] = sum / f32(params.window * params.window);
}
