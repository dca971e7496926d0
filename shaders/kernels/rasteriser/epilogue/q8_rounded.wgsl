// What a lane does with its rows of a column of a product: a group in eight bits, with the others of
// its work group. There are whole groups of rows, and four rows a lane.
// @import kernels/rasteriser/lib/q8_lanes

fn buf_put(col: u32, row: u32, values: array<f32, ROWS>, lane: u32) {
    let four = vec4<f32>(values[0], values[1], values[2], values[3]);
    q8_put((col * params.m + row) / 32u, four, dot(four, four), lane);
}
