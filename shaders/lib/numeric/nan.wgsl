// Keep NaN: drivers may turn it into a number or an infinity. By its bits, since a driver may also
// assume that any value equals itself.

fn keep_nan(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return select(y, x, magnitude > vec4<u32>(0x7f800000u));
}

// The same of one value.
fn keep_nan_of(x: f32, y: f32) -> f32 {
    return select(y, x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}

// y, but not a number where `undefined` says so.
fn nan_where(undefined: vec4<bool>, y: vec4<f32>) -> vec4<f32> {
    let bits = select(bitcast<vec4<u32>>(y), vec4<u32>(0x7fc00000u), undefined);
    return bitcast<vec4<f32>>(bits);
}

// y, but infinite where `unbounded` says so, with the sign of x.
fn infinite_where(unbounded: vec4<bool>, x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let infinity = (bitcast<vec4<u32>>(x) & vec4<u32>(0x80000000u)) | vec4<u32>(0x7f800000u);
    return bitcast<vec4<f32>>(select(bitcast<vec4<u32>>(y), infinity, unbounded));
}

// A value that is finite, or else comes of one that is not a number.
fn finite_or_nan(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let quiet = bitcast<f32>(bits | 0x400000u);
    return select(x, quiet, (bits & 0x7f800000u) == 0x7f800000u);
}
