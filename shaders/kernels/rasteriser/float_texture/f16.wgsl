// F16 weights in a texture, 8 of each texel, with exponents counted from 2^-24: see
// `wgpu_backend/kernels/rasteriser/layouts/float_texture.py`. Those of a float have three bits
// more, which a shift that keeps the sign makes room for and the mask clears; the value is too
// small by 2^(2 · RAISED).
// @import kernels/rasteriser/lib/texels as weights
// @import kernels/rasteriser/lib/float_texture

const buf_VEC4S: u32 = 2u;
const buf_PARTS: u32 = 4u;

fn buf_spread(words: vec2<u32>) -> vec4<f32> {
    let bits = bitcast<vec4<i32>>(vec4<u32>(words.x << 16u, words.x, words.y << 16u, words.y));
    return bitcast<vec4<f32>>((bits >> vec4<u32>(3u)) & vec4<i32>(-0x70002000));
}

fn buf_part(place: u32, values: ptr<function, array<vec4<f32>, buf_VEC4S>>) {
    // @unroll
    for (var t = 0u; t < TEXELS; t++) {
        let words_t = weights_texel(place + t * TILE_ROWS);
        (*values)[t * 2u] = buf_spread(words_t.xy);
        (*values)[t * 2u + 1u] = buf_spread(words_t.zw);
    }
}
