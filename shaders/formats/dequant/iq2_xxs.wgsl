// IQ2_XXS: value = ±magnitude · (scale + 1/2) · d / 4. Of 32 values one word has four bytes that
// point to vectors of eight magnitudes, the other four times seven signs and a 4-bit scale.
// @import lib/blocks/half_at
// @import lib/blocks/signs

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(2) var<storage, read> buf_grid: array<vec2<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 8u;
    let scale = half_at(buf_supers[block / 2u], block) * (0.5 + f32(words.y >> 28u)) * 0.25;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let entry_i = buf_grid[(words.x >> (8u * i)) & 255u];
        let signs_i = eight_signs((words.y >> (7u * i)) & 127u);
        (*values)[i * 2u] = with_signs(vec4<f32>(unpack4xU8(entry_i.x)) * scale, signs_i);
        (*values)[i * 2u + 1u] = with_signs(vec4<f32>(unpack4xU8(entry_i.y)) * scale, signs_i >> 4u);
    }
}
