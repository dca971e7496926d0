// 32 weights and 32 values of a column as integers. Weights are quant · scale - minimum, with one
// scale and minimum for each half of the group.
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

// Values are quant · scale; the sums are those of quants, of all and of the first half, times the
// scale. The squares are summed of the values before they were rounded, and before a norm's weight.
struct Column {
    low: vec4<u32>,
    high: vec4<u32>,
    scale: f32,
    sum: f32,
    first: f32,
    squares: f32,
}

fn nibble_group(words: vec4<u32>, scale: f32, minimum: f32) -> Group {
    let low = words & vec4<u32>(0x0f0f0f0fu);
    let high = (words >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    return Group(low, high, vec2<f32>(scale), vec2<f32>(minimum));
}
