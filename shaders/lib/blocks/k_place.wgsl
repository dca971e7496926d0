// The 6-bit scale and minimum of a sub-block of a Q4_K or Q5_K super-block, see lib/blocks/k_scales, without
// branches: for lanes that differ in `i`, which is where a sub-block stands among eight.
//
// The first four have their six bits in a byte of the first word, minima in the second; the others
// have four in the third word, and two above the six of the first ones. Shifts and masks depend on
// `i` alone.

struct KPlace { six: u32, four: u32, six_mask: u32, four_mask: u32 }

fn k_place(i: u32) -> KPlace {
    let byte = (i & 3u) * 8u;
    let late = i >= 4u;
    return KPlace(
        byte + select(0u, 2u, late), byte, select(63u, 48u, late), select(0u, 15u, late),
    );
}

// Scale and minimum, multiplied by d and dmin.
fn k_scale_min_at(block: vec4<u32>, place: KPlace) -> vec2<f32> {
    let scale = ((block.y >> place.six) & place.six_mask) | ((block.w >> place.four) & place.four_mask);
    let minimum = ((block.z >> place.six) & place.six_mask)
        | ((block.w >> (place.four + 4u)) & place.four_mask);
    return unpack2x16float(block.x) * vec2<f32>(f32(scale), f32(minimum));
}
