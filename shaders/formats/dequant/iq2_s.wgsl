// IQ2_S: value = ±magnitude · (scale + 1/2) · d / 4, a 4-bit scale per 16 values. Of 32 values one
// word has the low bytes of four indices into vectors of eight magnitudes, the other the signs;
// half a word has the indices' high two bits and both scales.
// @import lib/blocks/half_at
// @import lib/blocks/signs

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(3) var<storage, read> buf_grid: array<vec2<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 8u;
    let half = buf_scales[group / 2u] >> ((group & 1u) * 16u);
    let quarter = half_at(buf_supers[block / 2u], block) * 0.25;
    let scale = (vec2<f32>(vec2<u32>(half >> 8u, half >> 12u) & vec2<u32>(15u)) + 0.5) * quarter;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let high_i = ((half >> (2u * i)) & 3u) << 8u;
        let entry_i = buf_grid[((words.x >> (8u * i)) & 255u) | high_i];
        let signs_i = words.y >> (8u * i);
        let scale_i = scale[i / 2u];
        (*values)[i * 2u] = with_signs(vec4<f32>(unpack4xU8(entry_i.x)) * scale_i, signs_i);
        (*values)[i * 2u + 1u] = with_signs(vec4<f32>(unpack4xU8(entry_i.y)) * scale_i, signs_i >> 4u);
    }
}
