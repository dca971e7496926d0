// Q8_0: quants of eight bits with a sign, a scale per 32. As in dot/q8_0, in a stream.
// @import lib/stream
// @import lib/halves

const buf_BLOCK: u32 = 4u;
const buf_HEAD: u32 = 2u;
const buf_LINES: u32 = 8u;
const buf_PAIRS: u32 = 0u;
const buf_HALVES: bool = false;

struct buf_Heads { scales: array<vec2<u32>, 4> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_pairs(at, 0u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let scale_r = half_at(heads.scales[r][i / 2u], i);
        groups[r] = Group(
            texel(at, 2u * r), texel(at, 2u * r + 1u), vec2<f32>(scale_r), vec2<f32>(0.0),
        );
    }
    return groups;
}
