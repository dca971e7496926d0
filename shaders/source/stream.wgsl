// Weights in a stream, a group of 32 at a time, for kernels that take rows one by one.
// @import stream/q4_0 as weights

const buf_QUADS: u32 = 8u;
const buf_PARTS: u32 = 1u;
const PART_STEP: u32 = 1u;

fn weight_start(row: u32, turns: u32, parts: u32) -> u32 {
    return params.weights_group + row * turns;
}

fn buf_part(group: u32, values: ptr<function, array<vec4<f32>, buf_QUADS>>) {
    let texels = weights_HEAD + weights_BLOCK * weights_LINES;
    let row = group / params.groups;
    let g = group % params.groups;
    let block = row / 32u * (params.groups / weights_BLOCK) + g / weights_BLOCK;
    let at = block * texels * 8u + row % 32u / 4u;
    let i = g % weights_BLOCK;
    let line = weights_HEAD + i * weights_LINES;
    var groups = weights_groups(at + line * 8u, weights_heads(at), i);
    let w = groups[row % 4u];
    // @unroll
    for (var q = 0u; q < 4u; q++) {
        (*values)[q] = vec4<f32>(unpack4xI8(w.low[q])) * w.scale.x - w.minimum.x;
        (*values)[q + 4u] = vec4<f32>(unpack4xI8(w.high[q])) * w.scale.y - w.minimum.y;
    }
}
