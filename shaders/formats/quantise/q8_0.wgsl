// 32 values as a block of Q8_0: the largest magnitude becomes 127. Planes as formats/dequant/q8_0 reads them.
// @import lib/numeric/exact
// @import lib/blocks/extremes

@group(0) @binding(0) var<storage, read_write> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> buf_scales: array<atomic<u32>>;

// Four quants in a word: rounded to nearest, halves away from zero.
fn buf_rounded(values: vec4<f32>, inverse: f32) -> u32 {
    let product = exact_product(values, inverse);
    let magnitude = abs(product);
    let whole = floor(magnitude);
    let rounded = whole + floor(2.0 * (magnitude - whole));
    return pack4xI8(vec4<i32>(select(rounded, -rounded, product < vec4<f32>(0.0))));
}

// Writes the quants; returns the scale, for one of those below.
fn buf_quantise(group: u32, values: ptr<function, array<vec4<f32>, 8>>) -> u32 {
    let scale = exact_quotient(abs(farthest(values)), 127u);
    let inverse = exact_inverse(scale);
    var words: array<u32, 8>;
    for (var i = 0u; i < 8u; i++) {
        words[i] = buf_rounded((*values)[i], inverse);
    }
    buf_quants[group * 2u] = vec4<u32>(words[0], words[1], words[2], words[3]);
    buf_quants[group * 2u + 1u] = vec4<u32>(words[4], words[5], words[6], words[7]);
    return half_bits(scale);
}

fn buf_store_scales(pair: u32, first: u32, second: u32) {
    atomicStore(&buf_scales[pair], first | (second << 16u));
}

// Of one block, where another thread has the one that shares its word.
fn buf_store_scale(group: u32, scale: u32) {
    let shift = (group & 1u) * 16u;
    atomicAnd(&buf_scales[group / 2u], 0xffff0000u >> shift);
    atomicOr(&buf_scales[group / 2u], scale << shift);
}
