// Weights in blocks as a lane of a rasteriser reads them, see `wgpu_backend/kernels/rasteriser/layouts/block_texture.py`: texels of its
// four rows in the order in which a product loads them, and the lanes' side by side.
//
// The layout gives the numbers that stand for nothing here: lanes of a tile and rows of a lane, and the
// bytes that a format has of a row: of scales and supers in a head, which HEAD_GROUPS groups of 32 share, of
// quants and of the bits above them in each group. A file of block_texture/ has `group`, which makes the i-th group
// behind a head; for its PAIRS and TWO_SCALES see lib/blocks/group. The importing file has `weights`.
// @import lib/blocks/group

@group(0) @binding(0) var weights_texture: texture_storage_2d<rgba32uint, read>;

const TEXEL_ROW_BITS: u32 = 0u;
const TEXTURE_LANES: u32 = 1u;
const LANE_ROWS: u32 = 1u;
const HEAD_GROUPS: u32 = 1u;
const SCALES_NBYTES: u32 = 0u;
const SUPERS_NBYTES: u32 = 0u;
const QUANTS_NBYTES: u32 = 0u;
const HIGH_NBYTES: u32 = 0u;
// Texels that a lane loads for a head, for a group, and for a head with its groups.
const HEAD_TEXELS: u32 = (SCALES_NBYTES + 3u) / 4u + (SUPERS_NBYTES + 3u) / 4u;
const GROUP_TEXELS: u32 = QUANTS_NBYTES / 4u + (HIGH_NBYTES + 3u) / 4u;
const BLOCK_TEXELS: u32 = HEAD_TEXELS + HEAD_GROUPS * GROUP_TEXELS;

// What a row has in a group and the head before it; quants of 32 bytes go on in `more`.
struct Row {
    quants: vec4<u32>,
    more: vec4<u32>,
    high: vec2<u32>,
    scales: vec4<u32>,
    supers: u32,
}

struct Heads { scales: array<vec4<u32>, 4>, supers: array<vec4<u32>, 4> }

// First texel of the lane that a row is of, where rows have so many groups.
fn lane_start(row: u32, groups: u32) -> u32 {
    let lane = row / LANE_ROWS;
    let tile = lane / TEXTURE_LANES * (groups / HEAD_GROUPS * BLOCK_TEXELS);
    return tile * TEXTURE_LANES + lane % TEXTURE_LANES;
}

// The i-th texel of a lane from one on.
fn texel(at: u32, i: u32) -> vec4<u32> {
    let place = at + i * TEXTURE_LANES;
    return textureLoad(weights_texture, vec2<u32>(place & ((1u << TEXEL_ROW_BITS) - 1u), place >> TEXEL_ROW_BITS));
}

// Heads of the groups from a multiple of BLOCK on.
fn texture_heads(start: u32, block: u32) -> Heads {
    let at = start + block / HEAD_GROUPS * BLOCK_TEXELS * TEXTURE_LANES;
    return Heads(
        row_bytes(at, 0u, SCALES_NBYTES), row_bytes(at, (SCALES_NBYTES + 3u) / 4u, SUPERS_NBYTES),
    );
}

// The i-th group behind their heads.
fn texture_groups(start: u32, heads: Heads, block: u32, i: u32) -> array<Group, 4> {
    let first = block / HEAD_GROUPS * BLOCK_TEXELS + HEAD_TEXELS + i * GROUP_TEXELS;
    let at = start + first * TEXTURE_LANES;
    let quants = row_bytes(at, 0u, QUANTS_NBYTES);
    let more = row_bytes(at, 1u, select(0u, 32u, QUANTS_NBYTES == 32u));
    let high = row_bytes(at, QUANTS_NBYTES / 4u, HIGH_NBYTES);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let row_r = Row(quants[r], more[r], high[r].xy, heads.scales[r], heads.supers[r].x);
        groups[r] = weights_group(row_r, i);
    }
    return groups;
}

// So many bytes of each row, from a texel on, as words; of 32 bytes 16.
fn row_bytes(at: u32, first: u32, nbytes: u32) -> array<vec4<u32>, 4> {
    var rows: array<vec4<u32>, 4>;
    if nbytes >= 16u {
        // @unroll
        for (var r = 0u; r < 4u; r++) {
            rows[r] = texel(at, first + r * (nbytes / 16u));
        }
    } else if nbytes == 12u {
        let a = texel(at, first);
        let b = texel(at, first + 1u);
        let c = texel(at, first + 2u);
        rows[0] = vec4<u32>(a.xyz, 0u);
        rows[1] = vec4<u32>(a.w, b.xy, 0u);
        rows[2] = vec4<u32>(b.zw, c.x, 0u);
        rows[3] = vec4<u32>(c.yzw, 0u);
    } else if nbytes == 8u {
        let low = texel(at, first);
        let high = texel(at, first + 1u);
        rows[0] = vec4<u32>(low.xy, 0u, 0u);
        rows[1] = vec4<u32>(low.zw, 0u, 0u);
        rows[2] = vec4<u32>(high.xy, 0u, 0u);
        rows[3] = vec4<u32>(high.zw, 0u, 0u);
    } else if nbytes > 0u {
        let both = texel(at, first);
        // @unroll
        for (var r = 0u; r < 4u; r++) {
            let half_r = (both[r / 2u] >> (r % 2u * 16u)) & 0xffffu;
            rows[r].x = select(both[r], half_r, nbytes == 2u);
        }
    }
    return rows;
}
