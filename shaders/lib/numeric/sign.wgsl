// Signs by their bits, which zeros and what is not a number have too.

fn with_sign_of(x: vec4<f32>, y: vec4<f32>) -> vec4<f32> {
    let sign = bitcast<vec4<u32>>(x) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>((bitcast<vec4<u32>>(y) & vec4<u32>(0x7fffffffu)) | sign);
}

fn is_negative(x: vec4<f32>) -> vec4<bool> {
    return bitcast<vec4<u32>>(x) > vec4<u32>(0x7fffffffu);
}
