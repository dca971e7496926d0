// y = √(a² + b²) without overflow, with broadcasting.
// @import lib/numeric/nan
// @import lib/elementwise/binary

fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let large = max(abs(a), abs(b));
    // Powers of two, so that squares stay within f32.
    let down = select(vec4<f32>(1.0), vec4<f32>(8.470329472543003e-22), large > vec4<f32>(1e18));
    let factor = select(down, vec4<f32>(1.2676506002282294e30), large < vec4<f32>(1e-18));
    let u = a * factor;
    let v = b * factor;
    let root = keep_nan(a, keep_nan(b, sqrt(u * u + v * v) / factor));
    let a_bits = bitcast<vec4<u32>>(a) & vec4<u32>(0x7fffffffu);
    let b_bits = bitcast<vec4<u32>>(b) & vec4<u32>(0x7fffffffu);
    let infinity = vec4<u32>(0x7f800000u);
    return infinite_where((a_bits == infinity) | (b_bits == infinity), vec4<f32>(1.0), root);
}
