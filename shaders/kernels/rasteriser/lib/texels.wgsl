// Weights in a texture: a rasteriser loads 16 bytes of eight lanes in fifty instructions, where words
// of a buffer take seven for each lane and eight more for each word. The layout gives TEXEL_ROW_BITS.

const TEXEL_ROW_BITS: u32 = 0u;

@group(0) @binding(0) var buf: texture_storage_2d<rgba32uint, read>;

fn buf_texel(place: u32) -> vec4<u32> {
    return textureLoad(buf, vec2<u32>(place & ((1u << TEXEL_ROW_BITS) - 1u), place >> TEXEL_ROW_BITS));
}
