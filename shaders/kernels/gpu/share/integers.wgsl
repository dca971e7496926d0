// Share of a lane in a row of blocks whose weights are integers: a group of 32, quant · scale - minimum.
// The minimum is multiplied with the sum of x, which all rows of a lane share.
// @import formats/int8/q4_0 as weights

const buf_VECTORS: u32 = 8u;

struct buf_Column { values: array<vec4<f32>, 8>, sums: vec2<f32>, squares: f32 }

fn buf_column(at: u32, first: u32) -> buf_Column {
    var column: buf_Column;
    var squares = 0.0;
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        column.values[k] = prologue_values(at + k, first + k, &squares);
    }
    column.squares = squares;
    let low = column.values[0] + column.values[1] + column.values[2] + column.values[3];
    let high = column.values[4] + column.values[5] + column.values[6] + column.values[7];
    column.sums = vec2<f32>(low.x + low.y + low.z + low.w, high.x + high.y + high.z + high.w);
    return column;
}

fn buf_product(words: weights_Words, i: u32, lane: u32, x: buf_Column, sum: f32) -> f32 {
    let w = weights_group(words, i, weights_place(lane));
    if weights_TWO_SCALES {
        let low = buf_half(w.low, x.values[0], x.values[1], x.values[2], x.values[3], 0.0);
        let high = buf_half(w.high, x.values[4], x.values[5], x.values[6], x.values[7], 0.0);
        return sum + low * w.scale.x + high * w.scale.y - dot(w.minimum, x.sums);
    }
    let low = buf_half(w.low, x.values[0], x.values[1], x.values[2], x.values[3], 0.0);
    let all = buf_half(w.high, x.values[4], x.values[5], x.values[6], x.values[7], low);
    return sum + all * w.scale.x - w.minimum.x * (x.sums.x + x.sums.y);
}

fn buf_half(
    quants: vec4<u32>, first: vec4<f32>, second: vec4<f32>, third: vec4<f32>, fourth: vec4<f32>,
    before: f32,
) -> f32 {
    var sum = buf_four(quants.x, first, before);
    sum = buf_four(quants.y, second, sum);
    sum = buf_four(quants.z, third, sum);
    return buf_four(quants.w, fourth, sum);
}

fn buf_four(quants: u32, x: vec4<f32>, before: f32) -> f32 {
    let w = buf_bytes(quants);
    return before + w.x * x.x + w.y * x.y + w.z * x.z + w.w * x.w;
}

fn buf_bytes(quants: u32) -> vec4<f32> {
    if weights_PAIRS == 0u {
        return vec4<f32>(unpack4xI8(quants));
    }
    return vec4<f32>(unpack4xU8(quants));
}
