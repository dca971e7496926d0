// What is not a number stays so: drivers may make a number or an infinity of it. By its bits, since a
// driver may also take any value to be equal to itself.

fn keep_nan(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return select(y, x, magnitude > vec4<u32>(0x7f800000u));
}

// The same of one value.
fn keep_nan_of(x: f32, y: f32) -> f32 {
    return select(y, x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}

// A value that is finite, or else comes of one that is not a number.
fn finite_or_nan(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let quiet = bitcast<f32>(bits | 0x400000u);
    return select(x, quiet, (bits & 0x7f800000u) == 0x7f800000u);
}
