// Sum of 16 products of bytes, by the dot product of packed bytes that devices have.

fn sum16(weights: vec4<u32>, x: vec4<u32>, pairs: u32) -> i32 {
    return dot4I8Packed(weights.x, x.x) + dot4I8Packed(weights.y, x.y)
        + dot4I8Packed(weights.z, x.z) + dot4I8Packed(weights.w, x.w);
}
