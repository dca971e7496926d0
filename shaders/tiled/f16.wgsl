// F16 weights in an image, 8 of each texel.
// @import rasteriser/texels as weights
// @import lib/in_tiles

const buf_QUADS: u32 = 2u;
const buf_PARTS: u32 = 4u;

fn buf_part(place: u32, values: ptr<function, array<vec4<f32>, buf_QUADS>>) {
    // @unroll
    for (var t = 0u; t < TEXELS; t++) {
        let words_t = weights_texel(place + t * TILE_ROWS);
        (*values)[t * 2u] = vec4<f32>(unpack2x16float(words_t.x), unpack2x16float(words_t.y));
        (*values)[t * 2u + 1u] = vec4<f32>(unpack2x16float(words_t.z), unpack2x16float(words_t.w));
    }
}
