// Q5_0: value = (quant - 16) · scale. As Q4_0, with the fifth bits of a block in one word.
// @import lib/blocks/nibbles

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;

fn buf_scale(group: u32) -> f32 {
    let pair = unpack2x16float(buf_scales[group / 2u]);
    return select(pair.x, pair.y, (group & 1u) == 1u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let high = buf_high[group];
    let scale = buf_scale(group);
    // As in Q4_0.
    let least = -16.0 * scale;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = (words[i] & 0x0f0f0f0fu) | high_bits_of(high, i * 4u);
        let high_i = ((words[i] >> 4u) & 0x0f0f0f0fu) | high_bits_of(high, i * 4u + 16u);
        (*values)[i] = vec4<f32>(unpack4xU8(low_i)) * scale + least;
        (*values)[i + 4u] = vec4<f32>(unpack4xU8(high_i)) * scale + least;
    }
}
