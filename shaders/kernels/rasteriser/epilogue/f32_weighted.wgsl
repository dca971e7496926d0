// What a lane does with its rows of a column of a product: sums, stored as they are, and these times
// the weight of a norm, with the squares of which the product that follows makes the norm. A work
// group has as many rows as share a number of squares.
// @import formats/load/f32 as scale
// @import lib/linear/squares

@group(0) @binding(0) var<storage, read_write> total: array<f32>;

fn buf_put(col: u32, group: u32, lane: u32, values: array<f32, ROWS>) {
    let tail = square_vec4s(params.m) * 4u;
    let start = col * (params.m + tail);
    var squares = 0.0;
    // @unroll
    for (var r = 0u; r < ROWS; r++) {
        let row_r = row_mapping_row(group, lane, r);
        if row_r < params.m {
            let sum_r = added(col, row_r, values[r]);
            squares += sum_r * sum_r;
            total[col * params.m + row_r] = sum_r;
            y[start + row_r] = sum_r * scale_load(params.scale_offset + row_r);
        }
    }
    let all = subgroupAdd(squares);
    // The last group has lanes for the zeros, too.
    let last = (params.m - 1u) / SQUARED;
    if group + lane < tail && (lane == 0u || group == last) {
        y[start + params.m + group + lane] = select(0.0, all, lane == 0u);
    }
}
