// Weights that are too small by 2^(2 · RAISED): what they are multiplied with, and the sums of the
// products, are each raised by 2^RAISED, so that on the way nothing comes near the ends of f32.

const RAISED: u32 = 0u;

fn raised(value: f32) -> f32 {
    return value * bitcast<f32>((127u + RAISED) << 23u);
}

fn raised4(values: vec4<f32>) -> vec4<f32> {
    return values * bitcast<f32>((127u + RAISED) << 23u);
}
