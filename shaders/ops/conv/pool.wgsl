// y[n, d, h, w, c] = largest value, or mean, of a window of a channel: a thread for each, or for
// four channels that are a vector in storage.
// @import formats/load/f32 as x
// @import formats/vec4/f32 as vec4s
// @import lib/index/grid
// @import lib/numeric/nan

const WG: u32 = 64u;
const VECTOR: bool = true;
const LARGEST: bool = true;
const COUNTS_PADDING: bool = true;

struct Params {
    count: u32, blocks: u32, channels: u32, x_offset: u32, none: f32, size: vec4<u32>, out: vec4<u32>,
    kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
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
    let pixel = i / params.blocks;
    let channel = (i % params.blocks) * select(1u, 4u, VECTOR);
    let row = pixel / params.out.w;
    let plane = row / params.out.z;
    let start = vec3<u32>(plane % params.out.y, row % params.out.z, pixel % params.out.w);
    let first = start * params.step.yzw - params.before.yzw;
    let volume = (plane / params.out.y) * params.size.y;
    var total = vec4<f32>(params.none);
    var seen = 0u;
    for (var d = 0u; d < params.kernel.y; d++) {
        for (var h = 0u; h < params.kernel.z; h++) {
            for (var w = 0u; w < params.kernel.w; w++) {
                // What lies before the first value wraps around to large numbers.
                let at = first + vec3<u32>(d, h, w);
                if all(at < params.size.yzw) {
                    let place = ((volume + at.x) * params.size.z + at.y) * params.size.w + at.z;
                    let values = values_at(params.x_offset + place * params.channels + channel);
                    if LARGEST {
                        total = keep_nan(total, keep_nan(values, max(total, values)));
                    } else {
                        total += values;
                    }
                    seen += 1u;
                }
            }
        }
    }
    if !LARGEST {
        let all_taps = params.kernel.y * params.kernel.z * params.kernel.w;
        total /= f32(select(max(seen, 1u), all_taps, COUNTS_PADDING));
    }
    let at_y = pixel * params.channels + channel;
    for (var k = 0u; k < select(1u, 4u, VECTOR); k++) {
        y[at_y + k] = total[k];
    }
}
