// Whole numbers of f32 by their bits: what WGSL's own conversion makes of NaN is left to the driver, and
// what it makes of numbers beyond the type is the largest f32 that fits, not the largest integer.

// Magnitude without its fraction, at most 2³² - 1; 0 of NaN.
fn whole_magnitude(bits: vec4<u32>) -> vec4<u32> {
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let exponent = magnitude >> vec4<u32>(23u);
    let mantissa = (magnitude & vec4<u32>(0x7fffffu)) | vec4<u32>(0x800000u);
    let right = vec4<u32>(150u) - clamp(exponent, vec4<u32>(126u), vec4<u32>(150u));
    let left = clamp(exponent, vec4<u32>(150u), vec4<u32>(158u)) - vec4<u32>(150u);
    let whole = (mantissa >> right) << left;
    let bounded = select(whole, vec4<u32>(0xffffffffu), exponent > vec4<u32>(158u));
    return select(bounded, vec4<u32>(0u), magnitude > vec4<u32>(0x7f800000u));
}
