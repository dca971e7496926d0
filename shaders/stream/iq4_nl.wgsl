// IQ4_NL: quants stand for 16 numbers, a scale per 32. As in dot/iq4_nl, in a stream.
// @import lib/stream
// @import lib/halves
// @import lib/sixteen
// @import lib/sixteen_group

const buf_BLOCK: u32 = 4u;
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
        let scale_r = half_at(heads.scales[r][i / 2u], i);
        groups[r] = sixteen_group(nibble_group(quants[r], scale_r, 0.0), IQ4_NUMBERS);
    }
    return groups;
}
