// IQ4_XS: quants stand for 16 numbers, a scale per 32. As in dot/iq4_xs, in a stream.
// @import lib/stream
// @import lib/sixteen
// @import lib/sixteen_group

const buf_BLOCK: u32 = 8u;
const buf_HEAD: u32 = 2u;
const buf_LINES: u32 = 4u;
const buf_PAIRS: u32 = 0u;
const buf_HALVES: bool = false;

struct buf_Heads { scales: array<vec2<u32>, 4> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_pairs(at, 0u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_texels(at, 0u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let low_r = (heads.scales[r].y >> (4u * i)) & 15u;
        let high_r = (heads.scales[r].x >> (16u + 2u * i)) & 3u;
        let scale_r = unpack2x16float(heads.scales[r].x).x * (f32(low_r | (high_r << 4u)) - 32.0);
        groups[r] = sixteen_group(nibble_group(quants[r], scale_r, 0.0), IQ4_NUMBERS);
    }
    return groups;
}
