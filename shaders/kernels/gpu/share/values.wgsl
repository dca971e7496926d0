// Share of a lane in a row of weights that are unpacked into floats: a group of 32.
// @import formats/dequant/iq2_s as weights

const buf_VECTORS: u32 = 8u;

struct weights_Words { group: u32 }

struct buf_Column { values: array<vec4<f32>, 8>, squares: f32 }

fn weights_words(group: u32) -> weights_Words {
    return weights_Words(group);
}

fn buf_column(at: u32, first: u32) -> buf_Column {
    var column: buf_Column;
    var squares = 0.0;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        column.values[k] = prologue_values(at + k, first + k, &squares);
    }
    column.squares = squares;
    return column;
}

fn buf_product(words: weights_Words, i: u32, lane: u32, x: buf_Column, sum: f32) -> f32 {
    var values: array<vec4<f32>, 8>;
    weights_load32(words.group, &values);
    var part = vec4<f32>(0.0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        part += values[k] * x.values[k];
    }
    return sum + part.x + part.y + part.z + part.w;
}
