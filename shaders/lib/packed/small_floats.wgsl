// Small floats: E2M1 (FP4), E4M3 (FP8) and E8M0 (a power of two), from bits and to bits.

fn from_e2m1(codes: vec4<u32>) -> vec4<f32> {
    let exponent = (codes >> vec4<u32>(1u)) & vec4<u32>(3u);
    let mantissa = codes & vec4<u32>(1u);
    let above = (mantissa + 2u) << (max(exponent, vec4<u32>(1u)) - 1u);
    let size = vec4<f32>(select(above, mantissa, exponent == vec4<u32>(0u))) * 0.5;
    return select(size, -size, (codes & vec4<u32>(8u)) != vec4<u32>(0u));
}

// Nearest of 0, 1/2, 1, 3/2, 2, 3, 4 and 6 with a sign; halfway it is the smaller.
fn to_e2m1(x: f32) -> u32 {
    let size = abs(x);
    let steps = vec4<f32>(0.25, 0.75, 1.25, 1.75);
    let further = vec3<f32>(2.5, 3.5, 5.0);
    let code = dot(vec4<u32>(vec4<f32>(size) > steps), vec4<u32>(1u))
        + dot(vec3<u32>(vec3<f32>(size) > further), vec3<u32>(1u));
    return select(code, code | 8u, x < 0.0 && code > 0u);
}

// All bits set are no NaN here, but a number, as in MLX.
fn from_e4m3(codes: vec4<u32>) -> vec4<f32> {
    let exponent = (codes >> vec4<u32>(3u)) & vec4<u32>(15u);
    let mantissa = codes & vec4<u32>(7u);
    let small = vec4<f32>(mantissa) * 0.001953125;
    let normal = bitcast<vec4<f32>>(((exponent + 120u) << vec4<u32>(23u)) | (mantissa << vec4<u32>(20u)));
    let size = select(normal, small, exponent == vec4<u32>(0u));
    return select(size, -size, (codes & vec4<u32>(128u)) != vec4<u32>(0u));
}

// Nearest, ties to even, at most 448.
fn to_e4m3(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let sign = (bits >> 24u) & 128u;
    if size >= 0x43e00000u {
        return sign | 126u;
    }
    if size < 0x3c800000u {  // 2⁻⁶: steps of 2⁻⁹
        return sign | u32(round(bitcast<f32>(size) * 512.0));
    }
    let even = (size >> 20u) & 1u;
    return sign | ((size - 0x3c000000u + 0x7ffffu + even) >> 20u);
}

fn from_e8m0(code: u32) -> f32 {
    return bitcast<f32>(select(code << 23u, 0x400000u, code == 0u));
}

// Least power of two that is not smaller; 1 for 0.
fn to_e8m0(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select((bits + 0x7fffffu) >> 23u, 127u, bits == 0u);
}
