// Weights in blocks in a texture, a group of 32 at a time, for kernels that take rows one by one.
// @import kernels/rasteriser/block_texture/q4_0 as weights

const buf_VEC4S: u32 = 8u;
const buf_PARTS: u32 = 1u;
const PART_STEP: u32 = 1u;

fn weight_start(row: u32, row_length: u32, parts: u32) -> u32 {
    return params.weights_group + row * row_length;
}

fn buf_part(group: u32, values: ptr<function, array<vec4<f32>, buf_VEC4S>>) {
    let row = group / params.groups;
    let start = lane_start(row, params.groups);
    let i = group % params.groups % HEAD_GROUPS;
    let block = group % params.groups - i;
    var groups = texture_groups(start, texture_heads(start, block), block, i);
    let w = groups[row % LANE_ROWS];
    // @unroll
    for (var q = 0u; q < 4u; q++) {
        (*values)[q] = vec4<f32>(unpack4xI8(w.low[q])) * w.scale.x - w.minimum.x;
        (*values)[q + 4u] = vec4<f32>(unpack4xI8(w.high[q])) * w.scale.y - w.minimum.y;
    }
}
