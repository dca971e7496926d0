// Share of a lane in a row of floats: the 16 bytes beside those of the next lane.
// @import kernels/gpu/vectors/f32 as weights

const buf_VECTORS: u32 = weights_VECTORS;

struct buf_Column { values: array<vec4<f32>, weights_VECTORS>, squares: f32 }

// Values of x from a vector on, which is the `first` of its row.
fn buf_column(at: u32, first: u32) -> buf_Column {
    var column: buf_Column;
    var squares = 0.0;
    // @unroll
    for (var k = 0u; k < weights_VECTORS; k++) {
        column.values[k] = prologue_values(at + k, first + k, &squares);
    }
    column.squares = squares;
    return column;
}

fn buf_product(words: weights_Words, i: u32, lane: u32, x: buf_Column, sum: f32) -> f32 {
    let w = weights_values(words);
    var result = sum;
    // @unroll
    for (var k = 0u; k < weights_VECTORS; k++) {
        result += w[k].x * x.values[k].x;
        result += w[k].y * x.values[k].y;
        result += w[k].z * x.values[k].z;
        result += w[k].w * x.values[k].w;
    }
    return result;
}
