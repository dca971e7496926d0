// Q3_K: value = (quant - 4) · (scale - 32) · d, a 6-bit scale per 16 values and an f16 d per 256.
// The low two bits of 16 values are a word as in Q2_K, the high bits of 32 another. Three words
// hold the scales: low nibbles of eight each, then the high two bits of all.
// @import lib/blocks/bits2
// @import lib/blocks/half_at
// @import lib/blocks/nibbles

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_scale_pair(block: u32, group: u32) -> vec2<f32> {
    let low = buf_scales[block * 3u + group / 4u] >> ((group & 3u) * 8u);
    let high = buf_scales[block * 3u + 2u] >> (group * 4u);
    let scales = (vec2<u32>(low, low >> 4u) & vec2<u32>(15u))
        | ((vec2<u32>(high, high >> 2u) & vec2<u32>(3u)) << vec2<u32>(4u));
    return vec2<f32>(scales) - 32.0;
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let high = buf_high[group];
    let block = group / 8u;
    let scale = buf_scale_pair(block, group & 7u) * half_at(buf_supers[block / 2u], block);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = ((words.x >> (2u * i)) & 0x03030303u) | (high_bits_of(high, i * 4u) >> 2u);
        let high_i = ((words.y >> (2u * i)) & 0x03030303u) | (high_bits_of(high, i * 4u + 16u) >> 2u);
        (*values)[i] = (vec4<f32>(unpack4xU8(low_i)) - 4.0) * scale.x;
        (*values)[i + 4u] = (vec4<f32>(unpack4xU8(high_i)) - 4.0) * scale.y;
    }
}
