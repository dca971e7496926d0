// Q6_K: value = (quant - 32) · scale · d, an i8 scale per 16 values and an f16 d per 256. The low
// four bits of 32 values lie as in Q4_0; the high two in two words, four values a byte: value
// 4 · j + b of words.x has bits 2 · j of byte b, and words.y holds values 16 to 31 alike.
// @import lib/blocks/nibbles

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> buf_scales: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;

fn buf_super(block: u32) -> f32 {
    let pair = unpack2x16float(buf_supers[block / 2u]);
    return select(pair.x, pair.y, (block & 1u) == 1u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let high = buf_high[group];
    let block = group / 8u;
    let scales = unpack4xI8(buf_scales[block][(group & 7u) / 2u] >> ((group & 1u) * 16u));
    let scale = vec2<f32>(scales.xy) * buf_super(block);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = (words[i] & 0x0f0f0f0fu) | (((high.x >> (2u * i)) & 0x03030303u) << 4u);
        let high_i = ((words[i] >> 4u) & 0x0f0f0f0fu) | (((high.y >> (2u * i)) & 0x03030303u) << 4u);
        (*values)[i] = (vec4<f32>(unpack4xU8(low_i)) - 32.0) * scale.x;
        (*values)[i + 4u] = (vec4<f32>(unpack4xU8(high_i)) - 32.0) * scale.y;
    }
}
