// Rows of x in f16 by groups of 32 values, as `f16_activations` makes them.

const PLANAR: bool = false;
const NIBBLES: bool = false;     // pairs of values as factors of a nibble and of its byte

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

// Vector `i` of a group's five: pairs of values in four, and scale, sums and squares.
fn buf_vector(group: u32, i: u32) -> vec4<u32> {
    if PLANAR {
        return buf[i * params.n * params.groups + group];
    }
    return buf[params.x_offset / 4u + group * 5u + i];
}

fn buf_values(col: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = col * params.groups + group;
    let scale = bitcast<f32>(buf_vector(at, 4u).x);
    var values: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        let words = buf_vector(at, i);
        values[2u * i] = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)) * scale;
        values[2u * i + 1u] = vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w)) * scale;
    }
    if NIBBLES {
        for (var k = 0u; k < 4u; k++) {
            values[k] += values[k + 4u];
            values[k + 4u] *= 16.0;
        }
    }
    return values;
}

fn buf_squares(col: u32, group: u32) -> f32 {
    return bitcast<f32>(buf_vector(col * params.groups + group, 4u).w);
}
