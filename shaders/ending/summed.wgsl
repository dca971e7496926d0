// What a lane does with its rows of a column of a product: sums, stored as they are, and these times
// the weight of a norm as a group in eight bits, with the squares of which the product that follows
// makes the norm. There are whole groups of rows, and four rows a lane.
// @import load/f32 as scale
// @import lib/added
// @import lib/q8_lanes

@group(0) @binding(0) var<storage, read_write> total: array<f32>;

fn buf_put(col: u32, row: u32, values: array<f32, ROWS>, lane: u32) {
    var sums: vec4<f32>;
    var scales: vec4<f32>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        sums[r] = added(col, row + r, values[r]);
        scales[r] = scale_load(params.scale_offset + row + r);
        total[col * params.m + row + r] = sums[r];
    }
    q8_put((col * params.m + row) / 32u, sums * scales, dot(sums, sums), lane);
}
