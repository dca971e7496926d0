// Q4_0: value = (quant - 8) · scale. A block of 32 is a vec4 of words, nibbles low then high, and
// an f16 scale in a plane of its own.
// @import lib/blocks/nibbles

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_scale(group: u32) -> f32 {
    let pair = unpack2x16float(buf_scales[group / 2u]);
    return select(pair.x, pair.y, (group & 1u) == 1u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let scale = buf_scale(group);
    // Exact in f32, as (quant - 8) * scale is, and one instruction where a GPU fuses it.
    let least = -8.0 * scale;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = low_nibbles(words[i]) * scale + least;
        (*values)[i + 4u] = high_nibbles(words[i]) * scale + least;
    }
}
