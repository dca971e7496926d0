// Signs of codebook vectors: a bit each, 1 for negative.

// Four values with the signs of the low four bits.
fn with_signs(values: vec4<f32>, bits: u32) -> vec4<f32> {
    let signs = (vec4<u32>(bits) << vec4<u32>(31u, 30u, 29u, 28u)) & vec4<u32>(0x80000000u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(values) ^ signs);
}

// Eight signs from seven: an even number of them is negative.
fn eight_signs(seven: u32) -> u32 {
    return seven | ((countOneBits(seven) & 1u) << 7u);
}
