// The 6-bit scale and minimum of sub-block `i` (0 to 7) of a Q4_K or Q5_K super-block, from the
// vec4 that holds d and dmin (f16 each) and then twelve packed bytes.

fn k_byte(block: vec4<u32>, i: u32) -> u32 {
    return (block[1u + i / 4u] >> ((i & 3u) * 8u)) & 0xffu;
}

// Scale and minimum, multiplied by d and dmin.
fn k_scale_min(block: vec4<u32>, i: u32) -> vec2<f32> {
    var scale: u32;
    var minimum: u32;
    if i < 4u {
        scale = k_byte(block, i) & 63u;
        minimum = k_byte(block, i + 4u) & 63u;
    } else {
        let both = k_byte(block, i + 4u);
        scale = (both & 15u) | ((k_byte(block, i - 4u) >> 6u) << 4u);
        minimum = (both >> 4u) | ((k_byte(block, i) >> 6u) << 4u);
    }
    return unpack2x16float(block.x) * vec2<f32>(f32(scale), f32(minimum));
}
