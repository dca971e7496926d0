// Q5_K: as Q4_K, with the fifth bits of 32 values in one word.
// @import lib/blocks/nibbles
// @import lib/blocks/k_place

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<vec4<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let high = buf_high[group];
    let scale = k_scale_min_at(buf_scales[group / 8u], k_place(group & 7u));
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let low_i = (words[i] & 0x0f0f0f0fu) | high_bits_of(high, i * 4u);
        let high_i = ((words[i] >> 4u) & 0x0f0f0f0fu) | high_bits_of(high, i * 4u + 16u);
        (*values)[i] = vec4<f32>(unpack4xU8(low_i)) * scale.x - scale.y;
        (*values)[i + 4u] = vec4<f32>(unpack4xU8(high_i)) * scale.x - scale.y;
    }
}
