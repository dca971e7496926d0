// f32 without its fraction, at least LEAST and at most MOST; NaN becomes 0.
// @import lib/numeric/whole

const LEAST: i32 = i32(-2147483648);
const MOST: i32 = 2147483647;

fn buf_of(value: vec4<f32>) -> vec4<i32> {
    let bits = bitcast<vec4<u32>>(value);
    let negative = bits > vec4<u32>(0x7fffffffu);
    let magnitude = whole_magnitude(bits);
    // From 2³¹ on, both ends of i32 are nearest.
    let top = select(vec4<u32>(0x7fffffffu), vec4<u32>(0x80000000u), negative);
    let bounded = min(magnitude, top);
    let whole = select(bounded, ~bounded + vec4<u32>(1u), negative);
    return clamp(bitcast<vec4<i32>>(whole), vec4<i32>(LEAST), vec4<i32>(MOST));
}
