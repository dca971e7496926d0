// A group whose bytes have the quants of two weights each.
// @import lib/blocks/group

// Second halves are whole bytes, 16 times the nibble plus that of the first half: for columns that make
// up for it.
const WHOLE_BYTES: bool = false;

fn nibbles_or_bytes(words: vec4<u32>, scale: f32, minimum: f32) -> Group {
    let low = words & vec4<u32>(0x0f0f0f0fu);
    let high = select((words >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu), words, WHOLE_BYTES);
    return Group(low, high, vec2<f32>(scale), vec2<f32>(minimum));
}
