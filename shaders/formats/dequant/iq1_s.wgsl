// IQ1_S: value = (number ± 1/8) · (2 · scale + 1) · d, numbers -1, 0 and 1, a 3-bit scale and the
// sign of 1/8 per 32 values. Of these, four bytes and four times three high bits point to vectors
// of eight numbers; the high bits, the scale and the sign are half a word.
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_high: array<u32>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;
@group(0) @binding(3) var<storage, read> buf_grid: array<vec2<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let quants = buf_quants[group];
    let high = buf_high[group / 2u] >> ((group & 1u) * 16u);
    let block = group / 8u;
    let scale = half_at(buf_supers[block / 2u], block) * f32(2u * ((high >> 12u) & 7u) + 1u);
    let shift = select(0.125, -0.125, (high & 0x8000u) != 0u);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let high_i = ((high >> (3u * i)) & 7u) << 8u;
        let entry_i = buf_grid[((quants >> (8u * i)) & 255u) | high_i];
        (*values)[i * 2u] = (vec4<f32>(unpack4xI8(entry_i.x)) + shift) * scale;
        (*values)[i * 2u + 1u] = (vec4<f32>(unpack4xI8(entry_i.y)) + shift) * scale;
    }
}
