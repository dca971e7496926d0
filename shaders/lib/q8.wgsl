// A group of 32 values in eight bits, as `q8_activations` lays it out: three vectors.

// A group whose largest magnitude is below 2^-100 counts as zero; infinity and NaN make it NaN.
const Q8_SMALLEST: u32 = 0x0d800000u;
const Q8_INFINITY: u32 = 0x7f800000u;
const Q8_NAN: u32 = 0x7fc00000u;

fn q8_group(values: ptr<function, array<vec4<f32>, 8>>) -> array<vec4<u32>, 3> {
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    var bits = vec4<u32>(0u);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        bits = max(bits, bitcast<vec4<u32>>(abs((*values)[k])));
    }
    let largest = max(max(bits.x, bits.y), max(bits.z, bits.w));
    let plain = largest >= Q8_SMALLEST && largest < Q8_INFINITY;
    let inverse = select(0.0, 127.0 / bitcast<f32>(largest), plain);
    let scale = select(0.0, bitcast<f32>(largest) / 127.0, plain);
    var words: array<u32, 8>;
    var totals = array<i32, 2>(0, 0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let scaled_k = vec4<i32>(round((*values)[k] * inverse));
        let quants_k = select(vec4<i32>(0), scaled_k, vec4<bool>(plain));
        words[k] = pack4xI8(quants_k);
        totals[k / 4u] += quants_k.x + quants_k.y + quants_k.z + quants_k.w;
    }
    let given = select(bitcast<u32>(scale), Q8_NAN, largest >= Q8_INFINITY);
    let sums = vec3<i32>(totals[0] + totals[1], totals[0], totals[1]);
    return array<vec4<u32>, 3>(
        vec4<u32>(words[0], words[1], words[2], words[3]),
        vec4<u32>(words[4], words[5], words[6], words[7]),
        vec4<u32>(given, bitcast<vec3<u32>>(vec3<f32>(sums) * scale)),
    );
}

// Keep what rounding to a group leaves of its values.
fn q8_subtract(values: ptr<function, array<vec4<f32>, 8>>, group: array<vec4<u32>, 3>) {
    let scale = bitcast<f32>(group[2].x);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        (*values)[k] -= vec4<f32>(unpack4xI8(group[k / 4u][k % 4u])) * scale;
    }
}
