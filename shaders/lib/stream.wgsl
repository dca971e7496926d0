// Weights in blocks as a lane of a rasteriser reads them, see `wgpu_backend/ml/streams.py`: texels of its
// four rows in the order in which a product asks for them, and the lanes' side by side.
//
// A file of stream/ says of its format: BLOCK, groups of 32 that share a head; HEAD and LINES, texels of
// the head and of each group. Its `heads` and `groups` are of all four rows.
// @import lib/group

@group(0) @binding(0) var weights_stream: texture_storage_2d<rgba32uint, read>;

const LINE_BITS: u32 = 10u;

// The i-th texel of a lane from one on.
fn texel(at: u32, i: u32) -> vec4<u32> {
    let place = at + i * 8u;
    return textureLoad(weights_stream, vec2<u32>(place & ((1u << LINE_BITS) - 1u), place >> LINE_BITS));
}

// Words of 16 bytes of each row.
fn row_texels(at: u32, first: u32) -> array<vec4<u32>, 4> {
    return array<vec4<u32>, 4>(
        texel(at, first), texel(at, first + 1u), texel(at, first + 2u), texel(at, first + 3u),
    );
}

// Words of 8 bytes of each row.
fn row_pairs(at: u32, first: u32) -> array<vec2<u32>, 4> {
    let low = texel(at, first);
    let high = texel(at, first + 1u);
    return array<vec2<u32>, 4>(low.xy, low.zw, high.xy, high.zw);
}
