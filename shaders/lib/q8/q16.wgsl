// A group of 32 values in sixteen bits, as `q16_activations` lays it out: the upper bytes of all, the lower
// ones, and a tail as behind a group in eight bits. A value is 256 times its upper byte plus the lower
// one, both with a sign, so weights in bytes are multiplied with either by dot products of bytes.
// @import lib/q8/q8

const Q16_STEPS: f32 = 32639.0;  // of the largest magnitude: 256 · 127 + 127
const Q16_STEP: f32 = 1.0 / 32639.0;

fn q16_scale(largest: u32) -> Q8Scale {
    return q8_scale_of(largest, Q16_STEPS, Q16_STEP);
}

// Upper and lower bytes of four values.
fn q16_words(quants: vec4<i32>) -> vec2<u32> {
    let upper = pack4xI8((quants + vec4<i32>(128)) >> vec4<u32>(8u));
    let lower = pack4xI8(quants);
    return vec2<u32>(upper, lower);
}

// A group rounded by one lane; the caller chooses the values whose squares are summed.
fn q16_group(values: ptr<function, array<vec4<f32>, 8>>, squares: f32) -> array<vec4<u32>, 5> {
    var bits = vec4<u32>(0u);
    for (var k = 0u; k < 8u; k++) {
        bits = max(bits, bitcast<vec4<u32>>(abs((*values)[k])));
    }
    let by = q16_scale(max(max(bits.x, bits.y), max(bits.z, bits.w)));
    var vectors: array<vec4<u32>, 5>;
    var totals = array<i32, 2>(0, 0);
    // @unroll
    for (var k = 0u; k < 8u; k++) {
        let quants_k = q8_quants((*values)[k], by);
        let words_k = q16_words(quants_k);
        vectors[k / 4u][k % 4u] = words_k.x;
        vectors[2u + k / 4u][k % 4u] = words_k.y;
        totals[k / 4u] += quants_k.x + quants_k.y + quants_k.z + quants_k.w;
    }
    vectors[4] = q8_tail(by, totals[0] + totals[1], totals[0], squares);
    return vectors;
}

// Sum of the squares of a group.
fn q16_squares(values: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    var squares = vec4<f32>(0.0);
    for (var k = 0u; k < 8u; k++) {
        squares += (*values)[k] * (*values)[k];
    }
    return dot(squares, vec4<f32>(1.0));
}
