// IQ2_XS: value = ±magnitude · (scale + 1/2) · d / 4, a 4-bit scale per 16 values. Of 32 values
// four halves of words have nine bits that point to a vector of eight magnitudes, and seven signs.
// @import lib/blocks/half_at
// @import lib/blocks/signs

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(3) var<storage, read> buf_grid: array<vec2<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 8u;
    let byte = buf_scales[group / 4u] >> ((group & 3u) * 8u);
    let quarter = half_at(buf_supers[block / 2u], block) * 0.25;
    let scale = (vec2<f32>(vec2<u32>(byte, byte >> 4u) & vec2<u32>(15u)) + 0.5) * quarter;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let quant_i = (words[i / 2u] >> ((i % 2u) * 16u)) & 0xffffu;
        let entry_i = buf_grid[quant_i & 511u];
        let signs_i = eight_signs(quant_i >> 9u);
        let scale_i = scale[i / 2u];
        (*values)[i * 2u] = with_signs(vec4<f32>(unpack4xU8(entry_i.x)) * scale_i, signs_i);
        (*values)[i * 2u + 1u] = with_signs(vec4<f32>(unpack4xU8(entry_i.y)) * scale_i, signs_i >> 4u);
    }
}
