// Bits of 64 moved up; 0 for a count beyond them.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let all_gone = b.y != 0u || b.x > 63u;
    return select(wide_shifted_left(a, min(b.x, 63u)), vec2<u32>(0u), all_gone);
}
