// y[i] = values at equal distances: the first half counted from `start`, the second from `stop`.
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, steps: u32, start: u32, stop: u32, step: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let first = grid_index(id, groups, WG) * 4u;
    if first >= params.size {
        return;
    }
    let step = bitcast<f32>(params.step);
    let i = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
    let from_start = bitcast<f32>(params.start) + vec4<f32>(i) * step;
    // Lanes beyond the end wrap around, and are not seen.
    let from_stop = bitcast<f32>(params.stop) - vec4<f32>(vec4<u32>(params.steps) - i) * step;
    y_store4(first, select(from_stop, from_start, i <= vec4<u32>(params.steps / 2u)));
}
