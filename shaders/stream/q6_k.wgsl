// Q6_K: quants of six bits, a scale per 16. As in dot/q6_k, in a stream.
// @import lib/stream
// @import lib/halves
// @import lib/packed_crumbs

const buf_BLOCK: u32 = 8u;
const buf_HEAD: u32 = 5u;
const buf_LINES: u32 = 6u;
const buf_PAIRS: u32 = 2u;
const buf_HALVES: bool = true;

struct buf_Heads { scales: array<vec4<u32>, 4>, supers: vec4<u32> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_texels(at, 0u), texel(at, 4u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_texels(at, 0u);
    let high = row_pairs(at, 4u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let scales_r = unpack4xI8(heads.scales[r][i / 2u] >> ((i & 1u) * 16u));
        let scale_r = vec2<f32>(scales_r.xy) * half_at(heads.supers[r / 2u], r);
        let low_r = nibble_group(quants[r], 0.0, 0.0);
        groups[r] = Group(
            low_r.low | (packed_crumbs(high[r].x) << vec4<u32>(4u)),
            low_r.high | (packed_crumbs(high[r].y) << vec4<u32>(4u)),
            scale_r,
            32.0 * scale_r,
        );
    }
    return groups;
}
