// Q2_K: quants of two bits, a scale and a minimum per 16. As in dot/q2_k, in a stream.
// @import lib/stream
// @import lib/packed_crumbs

const buf_BLOCK: u32 = 8u;
const buf_HEAD: u32 = 5u;
const buf_LINES: u32 = 2u;
const buf_PAIRS: u32 = 8u;
const buf_HALVES: bool = true;

struct buf_Heads { scales: array<vec4<u32>, 4>, supers: vec4<u32> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(row_texels(at, 0u), texel(at, 4u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_pairs(at, 0u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let bytes_r = heads.scales[r][i / 2u] >> ((i & 1u) * 16u);
        let four_r = vec4<u32>(bytes_r, bytes_r >> 8u, bytes_r >> 4u, bytes_r >> 12u) & vec4<u32>(15u);
        let scale_r = vec4<f32>(four_r) * unpack2x16float(heads.supers[r]).xxyy;
        groups[r] = Group(
            packed_crumbs(quants[r].x), packed_crumbs(quants[r].y), scale_r.xy, scale_r.zw,
        );
    }
    return groups;
}
