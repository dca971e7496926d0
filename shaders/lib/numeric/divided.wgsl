// Quotients by divisors of any size. WGSL promises them up to 2¹²⁶ alone: a driver that multiplies by the
// inverse, which is below normal numbers beyond that, makes 0 of x / x.

fn divided(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let huge = (bitcast<vec4<u32>>(b) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7e800000u);
    let factor = select(vec4<f32>(1.0), vec4<f32>(0.25), huge);
    return (a * factor) / (b * factor);
}
