// IQ3_S: value = ±magnitude · (2 · scale + 1) · d, a 4-bit scale per 32 values. Of these, eight
// bytes and eight high bits point to vectors of four magnitudes, and a word has the signs. Three
// words of a super-block hold the high bits, a byte for each 32, and then the scales.
// @import lib/blocks/half_at
// @import lib/blocks/signs

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_signs: array<u32>;
@group(0) @binding(2) var<storage, read> buf_scales: array<u32>;
@group(0) @binding(3) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(4) var<storage, read> buf_grid: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let signs = buf_signs[group];
    let block = group / 8u;
    let sub = group & 7u;
    let high = buf_scales[block * 3u + sub / 4u] >> ((sub & 3u) * 8u);
    let quant = (buf_scales[block * 3u + 2u] >> (sub * 4u)) & 15u;
    let scale = half_at(buf_supers[block / 2u], block) * f32(2u * quant + 1u);
    // @unroll
    for (var i = 0u; i < 8u; i++) {
        let low_i = (words[i / 4u] >> ((i % 4u) * 8u)) & 255u;
        let entry_i = buf_grid[low_i | (((high >> i) & 1u) << 8u)];
        (*values)[i] = with_signs(vec4<f32>(unpack4xU8(entry_i)) * scale, signs >> (4u * i));
    }
}
