// Bits of 64 moved down; nothing but the sign for a count beyond them.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = vec2<u32>(select(0u, 0xffffffffu, wide_is_negative(a)));
    let all_gone = b.y != 0u || b.x > 63u;
    return select(wide_shifted_right(a, min(b.x, 63u)), sign, all_gone);
}
