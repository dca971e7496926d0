// Rows of x before a norm, 32 values at a time: they are given its weight, and its factor is made of
// their squares.
// @import formats/load/f32 as gain

@group(0) @binding(0) var<storage, read> buf: array<vec4<f32>>;

fn buf_values(col: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = params.x_offset / 4u + (col * params.groups + group) * 8u;
    var values: array<vec4<f32>, 8>;
    for (var k = 0u; k < 8u; k++) {
        values[k] = buf[at + k] * gain_load4(params.gain_offset + group * 32u + k * 4u);
    }
    return values;
}

fn buf_squares(col: u32, group: u32) -> f32 {
    let at = params.x_offset / 4u + (col * params.groups + group) * 8u;
    var squares = 0.0;
    for (var k = 0u; k < 8u; k++) {
        squares += dot(buf[at + k], buf[at + k]);
    }
    return squares;
}
