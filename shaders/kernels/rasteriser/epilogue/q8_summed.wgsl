// What a lane does with its rows of a column of a product: sums, stored as they are, and these
// times the weight of a norm as a group in eight bits, with the squares of which the product that
// follows makes the norm. There are whole groups of rows, and four rows a lane, which are a vector,
// since a rasteriser tests the execution mask at each load of a lane; `addend` is formats/vec4/f32
// here, too.
// @import formats/vec4/f32 as scale
// @import kernels/rasteriser/lib/q8_lanes

@group(0) @binding(0) var<storage, read_write> total: array<vec4<f32>>;

fn buf_put(col: u32, row: u32, values: array<f32, ROWS>, lane: u32) {
    let addend_at = params.addend_offset + col * params.addend_stride + row;
    let made = vec4<f32>(values[0], values[1], values[2], values[3]);
    let sums = made + addend_load4(addend_at / 4u);
    let scales = scale_load4((params.scale_offset + row) / 4u);
    let at = col * params.m + row;
    total[at / 4u] = sums;
    q8_put(at / 32u, sums * scales, dot(sums, sums), lane);
}
