// 32 weights as integers: quant · scale - minimum, with one scale and minimum for each half of the group.
//
// A file of dot/ says of its format: SPAN, groups that share a head (scales that one load brings);
// PAIRS, see sums/pairs; LINE, groups whose quants fill a line of 64 bytes; HALVES, whether the halves
// of a group differ in scale. It has `head`, `group` and `touch`, which reads one word of a group.

struct Group {
    low: vec4<u32>,
    high: vec4<u32>,
    scale: vec2<f32>,
    minimum: vec2<f32>,
}

fn nibble_group(words: vec4<u32>, scale: f32, minimum: f32) -> Group {
    let low = words & vec4<u32>(0x0f0f0f0fu);
    let high = (words >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return Group(low, high, vec2<f32>(scale), vec2<f32>(minimum));
}
