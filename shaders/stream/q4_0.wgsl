// Q4_0: quants of four bits, a scale per 32. As in dot/q4_0, in a stream.
// @import lib/stream
// @import lib/halves

const buf_BLOCK: u32 = 4u;
const buf_HEAD: u32 = 2u;
const buf_LINES: u32 = 4u;
const buf_PAIRS: u32 = 8u;
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
        groups[r] = nibble_group(quants[r], scale_r, 8.0 * scale_r);
    }
    return groups;
}
