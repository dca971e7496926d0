// Sums of a product, stored as they are, and these times the weight of a norm, with the squares of which
// the product that follows makes the norm: a number for each 64 rows, behind all of them.
// @import formats/load/f32 as scale
// @import lib/linear/squares

@group(0) @binding(0) var<storage, read_write> total: array<f32>;

fn buf_put(col: u32, first_row: u32, lane: u32) {
    let tail = square_vec4s(params.m) * 4u;
    let start = col * (params.m + tail);
    let row = first_row + lane;
    if row < params.m {
        total[col * params.m + row] = results[lane];
        y[start + row] = bitcast<u32>(results[lane] * scale_load(params.scale_offset + row));
    }
    if lane == 0u {
        var squares = 0.0;
        for (var i = 0u; i < SQUARED; i++) {
            squares += results[i] * results[i];
        }
        y[start + params.m + first_row / SQUARED] = bitcast<u32>(squares);
    }
}
