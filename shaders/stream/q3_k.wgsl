// Q3_K: quants of three bits, a scale per 16. As in dot/q3_k, in a stream.
// @import lib/stream
// @import lib/fifths
// @import lib/halves
// @import lib/packed_crumbs

const buf_BLOCK: u32 = 8u;
const buf_HEAD: u32 = 4u;
const buf_LINES: u32 = 3u;
const buf_PAIRS: u32 = 8u;
const buf_HALVES: bool = true;

// Three words of each row.
fn row_threes(at: u32) -> array<vec3<u32>, 4> {
    let a = texel(at, 0u);
    let b = texel(at, 1u);
    let c = texel(at, 2u);
    return array<vec3<u32>, 4>(
        a.xyz, vec3<u32>(a.w, b.xy), vec3<u32>(b.zw, c.x), c.yzw,
    );
}

struct buf_Heads { scales: array<vec3<u32>, 4>, supers: vec4<u32> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_threes(at), texel(at, 3u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_pairs(at, 0u);
    let high = texel(at, 2u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let scales_r = heads.scales[r];
        let low_r = scales_r[i / 4u] >> ((i & 3u) * 8u);
        let high_r = scales_r.z >> (i * 4u);
        let both_r = (vec2<u32>(low_r, low_r >> 4u) & vec2<u32>(15u))
            | ((vec2<u32>(high_r, high_r >> 2u) & vec2<u32>(3u)) << vec2<u32>(4u));
        let scale_r = (vec2<f32>(both_r) - 32.0) * half_at(heads.supers[r / 2u], r);
        groups[r] = Group(
            packed_crumbs(quants[r].x) | (sixteen_fifths(high[r]) >> vec4<u32>(2u)),
            packed_crumbs(quants[r].y) | (sixteen_fifths(high[r] >> 16u) >> vec4<u32>(2u)),
            scale_r,
            4.0 * scale_r,
        );
    }
    return groups;
}
