// MXFP4: quants stand for 16 numbers, an exponent per 32. As in dot/mxfp4, in a stream.
// @import lib/stream
// @import lib/sixteen_group

const buf_BLOCK: u32 = 4u;
const buf_HEAD: u32 = 1u;
const buf_LINES: u32 = 4u;
const buf_PAIRS: u32 = 4u;
const buf_HALVES: bool = false;
const buf_NUMBERS: vec4<u32> = vec4<u32>(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u);

struct buf_Heads { exponents: vec4<u32> }

fn buf_heads(at: u32) -> buf_Heads {
    return buf_Heads(texel(at, 0u));
}

fn buf_groups(at: u32, heads: buf_Heads, i: u32) -> array<Group, 4> {
    let quants = row_texels(at, 0u);
    var groups: array<Group, 4>;
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let exponent_r = (heads.exponents[r] >> (i * 8u)) & 255u;
        let bits_r = select((exponent_r - 1u) << 23u, 0x200000u << exponent_r, exponent_r < 2u);
        let scale_r = bitcast<f32>(bits_r);
        let quants_r = nibble_group(quants[r], scale_r, 12.0 * scale_r);
        groups[r] = sixteen_group(quants_r, buf_NUMBERS);
    }
    return groups;
}
