// BF16 weights in a texture, 8 of each texel.
// @import kernels/rasteriser/lib/texels as weights
// @import kernels/rasteriser/lib/float_texture

const buf_VEC4S: u32 = 2u;
const buf_PARTS: u32 = 4u;

fn buf_spread(words: vec2<u32>) -> vec4<f32> {
    let bits = vec4<u32>(words.x << 16u, words.x, words.y << 16u, words.y);
    return bitcast<vec4<f32>>(bits & vec4<u32>(0xffff0000u));
}

fn buf_part(place: u32, values: ptr<function, array<vec4<f32>, buf_VEC4S>>) {
    // @unroll
    for (var t = 0u; t < TEXELS; t++) {
        let words_t = weights_texel(place + t * TILE_ROWS);
        (*values)[t * 2u] = buf_spread(words_t.xy);
        (*values)[t * 2u + 1u] = buf_spread(words_t.zw);
    }
}
