// A group in eight bits, stored word by word by the lanes that share it, see lib/q8/q8_store. The importing
// file has `y`, in words.
// @import lib/q8/q8

const PLANAR: bool = false;

fn largest_bits(values: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(abs(values));
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn place_of_word(group: u32, groups: u32, word: u32) -> u32 {
    return select(group * 12u + word, (word / 4u * groups + group) * 4u + word % 4u, PLANAR);
}

fn put_part(group: u32, groups: u32, part: u32, quants: vec4<i32>) {
    y[place_of_word(group, groups, part)] = pack4xI8(quants);
}

fn put_tail(group: u32, groups: u32, tail: vec4<u32>) {
    // @unroll
    for (var k = 0u; k < 4u; k++) {
        y[place_of_word(group, groups, 8u + k)] = tail[k];
    }
}
