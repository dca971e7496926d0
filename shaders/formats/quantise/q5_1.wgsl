// 32 values as a block of Q5_1: the smallest becomes 0, the largest 31. Planes as formats/dequant/q5_1 reads
// them.
// @import lib/numeric/exact
// @import lib/blocks/extremes
// @import lib/blocks/pack_quants

@group(0) @binding(0) var<storage, read_write> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read_write> buf_scales: array<u32>;

// Writes the quants; returns scale and minimum, for one of those below.
fn buf_quantise(group: u32, values: ptr<function, array<vec4<f32>, 8>>) -> u32 {
    let minimum = smallest(values);
    let scale = exact_quotient(largest(values) - minimum, 31u);
    let inverse = exact_inverse(scale);
    var quants: array<vec4<u32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let rounded = exact_product((*values)[i] - minimum, inverse) + 0.5;
        quants[i] = vec4<u32>(clamp(rounded, vec4<f32>(0.0), vec4<f32>(31.0)));
    }
    buf_quants[group] = packed_nibbles(&quants);
    buf_high[group] = packed_fifth_bits(&quants);
    return half_bits(scale) | (half_bits(minimum) << 16u);
}

fn buf_store_scales(pair: u32, first: u32, second: u32) {
    buf_scales[pair * 2u] = first;
    buf_scales[pair * 2u + 1u] = second;
}

// Of one block.
fn buf_store_scale(group: u32, scale: u32) {
    buf_scales[group] = scale;
}
