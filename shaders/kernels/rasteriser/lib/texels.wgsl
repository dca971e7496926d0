// Weights in an image: a rasteriser loads 16 bytes of eight lanes in fifty instructions, where words
// of a buffer take seven for each lane and eight more for each word. The layout gives LINE_BITS.

const LINE_BITS: u32 = 0u;

@group(0) @binding(0) var buf: texture_storage_2d<rgba32uint, read>;

fn buf_texel(place: u32) -> vec4<u32> {
    return textureLoad(buf, vec2<u32>(place & ((1u << LINE_BITS) - 1u), place >> LINE_BITS));
}
