// Groups of neighbouring experts, of which a token uses those whose two best experts score highest.
// @import lib/sort/order

const GROUPS: u32 = 1u;
const GROUPS_USED: u32 = 1u;
const MOST_GROUPS: u32 = 32u;
const SHUT: u32 = 0x007fffffu; // the key of negative infinity, for experts of other groups

// The two largest keys, with one more.
fn with_key(best: vec2<u32>, own: u32) -> vec2<u32> {
    return select(vec2(best.x, max(best.y, own)), vec2(own, best.x), own > best.x);
}

// Key of the sum of the two largest scores of a group of so many, or of its only one.
fn key_of_group(best: vec2<u32>, each: u32) -> u32 {
    let first = bitcast<f32>(f32_of_key(best.x));
    let second = select(0.0, bitcast<f32>(f32_of_key(best.y)), each > 1u);
    let lost = max(best.x, best.y) == 0xffffffffu; // no number
    return select(key_of_f32(first + second), 0xffffffffu, lost);
}
