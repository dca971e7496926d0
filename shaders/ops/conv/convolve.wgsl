// y[n, d, h, w, o] = sum over taps and channels of x · weight, channels in vectors of four: a
// thread makes four channels of PIXELS pixels, so that each vector it reads meets four others.
// @import formats/vec4/f32 as x
// @import formats/vec4/f32 as weights
// @import lib/index/grid
// @import lib/index/taps

const WG: u32 = 64u;
const PIXELS: u32 = 4u;

struct Params {
    pixels: u32, pixel_groups: u32, blocks: u32, outputs: u32, group_outputs: u32, vec4s: u32,
    x_offset: u32, weights_offset: u32, x_batch: u32, x_depth: u32, x_height: u32, x_width: u32,
    weight_row: u32, weight_depth: u32, weight_height: u32, weight_width: u32,
    size: vec4<u32>, out: vec4<u32>, kernel: vec4<u32>, step: vec4<u32>, before: vec4<u32>,
    dilation: vec4<u32>, spread: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group_index(group, groups);
    let first_pixel = (index % params.pixel_groups) * (WG * PIXELS) + lane;
    let block = index / params.pixel_groups;
    // Blocks of four outputs begin anew in each group of channels.
    let group_blocks = (params.group_outputs + 3u) / 4u;
    let channels = block / group_blocks;
    if channels * params.group_outputs >= params.outputs {
        return;
    }
    let within = (block % group_blocks) * 4u;
    var weight_at: vec4<u32>;
    for (var i = 0u; i < 4u; i++) {
        // Surplus outputs repeat the last one and are not stored.
        let output = channels * params.group_outputs + min(within + i, params.group_outputs - 1u);
        weight_at[i] = (params.weights_offset + output * params.weight_row) / 4u;
    }
    let x_at = params.x_offset / 4u + channels * params.vec4s;
    let strides = vec4<u32>(params.x_batch, params.x_depth, params.x_height, params.x_width);
    var places: array<vec4<u32>, PIXELS>;
    var sums: array<vec4<f32>, PIXELS>;
    // @unroll
    for (var p = 0u; p < PIXELS; p++) {
        places[p] = place(min(first_pixel + p * WG, params.pixels - 1u));
    }
    for (var d = 0u; d < params.kernel.y; d++) {
        for (var h = 0u; h < params.kernel.z; h++) {
            for (var w = 0u; w < params.kernel.w; w++) {
                let tap = vec4<u32>(0u, d, h, w);
                let of_tap = weights_of(tap);
                let tap_at = (of_tap.y * params.weight_depth + of_tap.z * params.weight_height
                    + of_tap.w * params.weight_width) / 4u;
                var origin = array<u32, PIXELS>();
                var inside = array<bool, PIXELS>();
                // @unroll
                for (var p = 0u; p < PIXELS; p++) {
                    let at_p = met(places[p], tap);
                    inside[p] = all(at_p < params.size);
                    let steps_p = at_p * strides;
                    let way_p = (steps_p.x + steps_p.y + steps_p.z + steps_p.w) / 4u;
                    origin[p] = select(0u, way_p, inside[p]);
                }
                for (var c = 0u; c < params.vec4s; c++) {
                    let w0 = weights_load4(weight_at.x + tap_at + c);
                    let w1 = weights_load4(weight_at.y + tap_at + c);
                    let w2 = weights_load4(weight_at.z + tap_at + c);
                    let w3 = weights_load4(weight_at.w + tap_at + c);
                    // @unroll
                    for (var p = 0u; p < PIXELS; p++) {
                        let read_p = x_load4(x_at + origin[p] + c);
                        let x_p = select(vec4<f32>(0.0), read_p, inside[p]);
                        sums[p] += vec4<f32>(
                            dot(w0, x_p), dot(w1, x_p), dot(w2, x_p), dot(w3, x_p),
                        );
                    }
                }
            }
        }
    }
    // @unroll
    for (var p = 0u; p < PIXELS; p++) {
        let pixel = first_pixel + p * WG;
        for (var i = 0u; i < 4u; i++) {
            if pixel < params.pixels && within + i < params.group_outputs {
                let output = channels * params.group_outputs + within + i;
                y[pixel * params.outputs + output] = sums[p][i];
            }
        }
    }
}

// Batch, and the place of the first tap, before padding, of a pixel of the result.
fn place(pixel: u32) -> vec4<u32> {
    let row = pixel / params.out.w;
    let plane = row / params.out.z;
    let start = vec2<u32>(plane / params.out.y, plane % params.out.y);
    return vec4<u32>(start, row % params.out.z, pixel % params.out.w) * params.step;
}
