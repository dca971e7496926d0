// f32 without its fraction, at most MOST; what is below zero, and NaN, becomes 0.
// @import lib/numeric/whole

const MOST: u32 = 0xffffffffu;

fn buf_of(value: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(value);
    let magnitude = whole_magnitude(bits);
    return min(select(magnitude, vec4<u32>(0u), bits > vec4<u32>(0x7fffffffu)), vec4<u32>(MOST));
}
