// 32 values as a block of Q5_0: the value of largest magnitude becomes -16. Planes as formats/dequant/q5_0
// reads them.
// @import lib/numeric/exact
// @import lib/blocks/extremes
// @import lib/blocks/pack_quants

@group(0) @binding(0) var<storage, read_write> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read_write> buf_scales: array<atomic<u32>>;

// Writes the quants; returns the scale, for one of those below.
fn buf_quantise(group: u32, values: ptr<function, array<vec4<f32>, 8>>) -> u32 {
    let scale = farthest(values) * -0.0625;
    let inverse = select(1.0, -1.0, scale < 0.0) * exact_inverse(abs(scale));
    var quants: array<vec4<u32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let rounded = exact_product((*values)[i], inverse) + 16.5;
        quants[i] = vec4<u32>(clamp(rounded, vec4<f32>(0.0), vec4<f32>(31.0)));
    }
    buf_quants[group] = packed_nibbles(&quants);
    buf_high[group] = packed_fifth_bits(&quants);
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
