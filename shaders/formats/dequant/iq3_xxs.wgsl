// IQ3_XXS: value = ±magnitude · (scale + 1/2) · d / 2. Of 32 values eight bytes point to vectors of
// four magnitudes; a word has four times seven signs and a 4-bit scale.
// @import lib/blocks/half_at
// @import lib/blocks/signs

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_signs: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(3) var<storage, read> buf_grid: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let signs = buf_signs[group];
    let block = group / 8u;
    let scale = half_at(buf_supers[block / 2u], block) * (0.5 + f32(signs >> 28u)) * 0.5;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let pair_i = words[i / 2u] >> ((i % 2u) * 16u);
        let signs_i = eight_signs((signs >> (7u * i)) & 127u);
        let first_i = vec4<f32>(unpack4xU8(buf_grid[pair_i & 255u])) * scale;
        let second_i = vec4<f32>(unpack4xU8(buf_grid[(pair_i >> 8u) & 255u])) * scale;
        (*values)[i * 2u] = with_signs(first_i, signs_i);
        (*values)[i * 2u + 1u] = with_signs(second_i, signs_i >> 4u);
    }
}
