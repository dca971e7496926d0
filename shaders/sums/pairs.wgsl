// Sum of 16 products of bytes where no instruction takes packed bytes, two products by one
// multiplication of words: (a + b · 2^16) · (y + x · 2^16) has a · x + b · y in its upper half.
//
// The lower half has a · y, whose sum the upper one is cleared of at the end. `pairs` of them fit into
// 16 bits before that, by how large weights of a format are; for signed weights it is 0, and the
// products are made one by one.

fn sum16(weights: vec4<u32>, x: vec4<u32>, pairs: u32) -> i32 {
    if pairs == 0u {
        return dot4I8Packed(weights.x, x.x) + dot4I8Packed(weights.y, x.y)
            + dot4I8Packed(weights.z, x.z) + dot4I8Packed(weights.w, x.w);
    }
    let x_even = (bitcast<vec4<i32>>(x << vec4<u32>(24u)) >> vec4<u32>(8u))
        + (bitcast<vec4<i32>>(x << vec4<u32>(8u)) >> vec4<u32>(24u));
    let x_odd = ((bitcast<vec4<i32>>(x << vec4<u32>(16u)) >> vec4<u32>(24u)) << vec4<u32>(16u))
        + (bitcast<vec4<i32>>(x) >> vec4<u32>(24u));
    let even = bitcast<vec4<i32>>(weights & vec4<u32>(0x00ff00ffu)) * x_even;
    let odd = bitcast<vec4<i32>>((weights >> vec4<u32>(8u)) & vec4<u32>(0x00ff00ffu)) * x_odd;
    let both = even + odd;
    if pairs == 8u {
        return upper(both.x + both.y + both.z + both.w);
    }
    if pairs == 4u {
        return upper(both.x + both.y) + upper(both.z + both.w);
    }
    return upper(both.x) + upper(both.y) + upper(both.z) + upper(both.w);
}

// A lower half from -2^15 to 2^15 - 1 is nothing or takes one from the upper half; a half makes up for that.
fn upper(sum: i32) -> i32 {
    return (sum + 32768) >> 16u;
}
