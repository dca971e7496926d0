// F32 weights in a texture, 4 of each texel.
// @import kernels/rasteriser/lib/texels as weights
// @import kernels/rasteriser/lib/float_texture

const buf_VEC4S: u32 = 1u;
const buf_PARTS: u32 = 8u;

fn buf_part(place: u32, values: ptr<function, array<vec4<f32>, buf_VEC4S>>) {
    // @unroll
    for (var t = 0u; t < TEXELS; t++) {
        (*values)[t] = bitcast<vec4<f32>>(weights_texel(place + t * TILE_ROWS));
    }
}
