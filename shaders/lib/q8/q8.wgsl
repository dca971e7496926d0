// A group of 32 values in eight bits, as `q8_activations` lays it out: three vectors.

// A group whose largest magnitude is below 2^-100 counts as zero; infinity and NaN make it NaN.
const Q8_SMALLEST: u32 = 0x0d800000u;
const Q8_INFINITY: u32 = 0x7f800000u;
const Q8_NAN: u32 = 0x7fc00000u;
// Of the largest magnitude. A product is rounded to nearest on every driver, a quotient is not.
const Q8_STEP: f32 = 1.0 / 127.0;

struct Q8Scale {
    scale: f32,
    inverse: f32,
    plain: bool,
    given: u32,
}

// What a group is divided by. Magnitudes are compared by their bits, so that a NaN is the largest.
fn q8_scale(largest: u32) -> Q8Scale {
    return q8_scale_of(largest, 127.0, Q8_STEP);
}

// The same where the largest magnitude is so many steps, and a step this part of it.
fn q8_scale_of(largest: u32, steps: f32, step: f32) -> Q8Scale {
    let plain = largest >= Q8_SMALLEST && largest < Q8_INFINITY;
    let scale = select(0.0, bitcast<f32>(largest) * step, plain);
    let inverse = select(0.0, steps / bitcast<f32>(largest), plain);
    let given = select(bitcast<u32>(scale), Q8_NAN, largest >= Q8_INFINITY);
    return Q8Scale(scale, inverse, plain, given);
}

fn q8_quants(values: vec4<f32>, by: Q8Scale) -> vec4<i32> {
    return select(vec4<i32>(0), vec4<i32>(round(values * by.inverse)), vec4<bool>(by.plain));
}

// What stands behind the quants, from their sums: of all, of the first half, and the squares.
fn q8_tail(by: Q8Scale, all: i32, first: i32, squares: f32) -> vec4<u32> {
    let sums = vec2<f32>(vec2<i32>(all, first)) * by.scale;
    return vec4<u32>(by.given, bitcast<vec2<u32>>(sums), bitcast<u32>(squares));
}

fn q8_group(values: ptr<function, array<vec4<f32>, 8>>) -> array<vec4<u32>, 3> {
    var bits = vec4<u32>(0u);
    var squares = vec4<f32>(0.0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        bits = max(bits, bitcast<vec4<u32>>(abs((*values)[k])));
        squares += (*values)[k] * (*values)[k];
    }
    let by = q8_scale(max(max(bits.x, bits.y), max(bits.z, bits.w)));
    var words: array<u32, 8>;
    var totals = array<i32, 2>(0, 0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let quants_k = q8_quants((*values)[k], by);
        words[k] = pack4xI8(quants_k);
        totals[k / 4u] += quants_k.x + quants_k.y + quants_k.z + quants_k.w;
    }
    return array<vec4<u32>, 3>(
        vec4<u32>(words[0], words[1], words[2], words[3]),
        vec4<u32>(words[4], words[5], words[6], words[7]),
        q8_tail(by, totals[0] + totals[1], totals[0], dot(squares, vec4<f32>(1.0))),
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
