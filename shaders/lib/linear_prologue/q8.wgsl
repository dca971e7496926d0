// Rows of x in eight bits, 32 values at a time, as `q8_activations` makes them; or two such rows, as
// `q8_pair` does, whose sum is a row.
// @import lib/q8/parts

const PLANAR: bool = false;

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

// Vector `i` of a group's three: quants, quants, and scale, sums and squares.
fn buf_vector(group: u32, i: u32) -> vec4<u32> {
    if PLANAR {
        return buf[i * params.n * params.groups + group];
    }
    return buf[params.x_offset / 4u + group * 3u + i];
}

fn buf_values(col: u32, group: u32) -> array<vec4<f32>, 8> {
    var values: array<vec4<f32>, 8>;
    for (var p = 0u; p < PARTS; p++) {
        let at = (col * PARTS + p) * params.groups + group;
        let scale = bitcast<f32>(buf_vector(at, 2u).x);
        for (var half = 0u; half < 2u; half++) {
            let words = buf_vector(at, half);
            // @unroll
            for (var k = 0u; k < 4u; k++) {
                values[half * 4u + k] += vec4<f32>(unpack4xI8(words[k])) * scale;
            }
        }
    }
    return values;
}

fn buf_squares(col: u32, group: u32) -> f32 {
    return bitcast<f32>(buf_vector(col * PARTS * params.groups + group, 2u).w);
}
