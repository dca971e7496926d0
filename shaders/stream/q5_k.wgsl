// Q5_K: quants of five bits, a scale and a minimum per 32. As in dot/q5_k, in a stream.
// @import lib/stream
// @import lib/fifths
// @import lib/k_scales

const buf_BLOCK: u32 = 8u;
const buf_HEAD: u32 = 4u;
const buf_LINES: u32 = 5u;
const buf_PAIRS: u32 = 4u;
const buf_HALVES: bool = false;

struct buf_Heads { scales: array<vec4<u32>, 4> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_texels(at, 0u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_texels(at, 0u);
    let high = texel(at, 4u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let scale_r = k_scale_min(heads.scales[r], i);
        groups[r] = with_fifths(nibble_group(quants[r], scale_r.x, scale_r.y), high[r]);
    }
    return groups;
}
