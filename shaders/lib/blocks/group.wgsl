// 32 weights as integers: quant · scale - minimum, with one scale and minimum for each half of the group.
//
// A file that makes groups of a format, as those of int8/, says of it: PAIRS, how many products of its
// quants with bytes fit into 16 bits; TWO_SCALES, whether the halves of a group differ in scale.

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
