// Sign of the first operand: 1, 0 or -1.
// @import lib/numeric/wide_integers

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let negative = wide_is_negative(a);
    let some = any(a != vec2<u32>(0u));
    return select(vec2<u32>(u32(some), 0u), vec2<u32>(0xffffffffu), negative);
}
