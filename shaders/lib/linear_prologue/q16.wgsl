// Rows of x in sixteen bits, 32 values at a time, as `q16_activations` makes them: five planes of vectors.

@group(0) @binding(0) var<storage, read> buf: array<vec4<u32>>;

// Vector `i` of a group's five: upper bytes, lower bytes, and scale, sums and squares.
fn buf_vector(group: u32, i: u32) -> vec4<u32> {
    return buf[i * params.n * params.groups + group];
}

fn buf_values(col: u32, group: u32) -> array<vec4<f32>, 8> {
    let at = col * params.groups + group;
    let scale = bitcast<f32>(buf_vector(at, 4u).x);
    var values: array<vec4<f32>, 8>;
    for (var half = 0u; half < 2u; half++) {
        let upper = buf_vector(at, half);
        let lower = buf_vector(at, 2u + half);
        // @unroll
        for (var k = 0u; k < 4u; k++) {
            let quants_k = unpack4xI8(upper[k]) * 256 + unpack4xI8(lower[k]);
            values[half * 4u + k] = vec4<f32>(quants_k) * scale;
        }
    }
    return values;
}

fn buf_squares(col: u32, group: u32) -> f32 {
    return bitcast<f32>(buf_vector(col * params.groups + group, 4u).w);
}
