// Sum of 16 products of bytes, by the dot product of packed bytes that devices have.

// Bytes of 16 values, as they are multiplied with weights.
alias Factors = vec4<u32>;

fn factors(words: vec4<u32>) -> Factors {
    return words;
}

fn sum16(weights: vec4<u32>, x: Factors, pairs: u32) -> i32 {
    return dot4I8Packed(weights.x, x.x) + dot4I8Packed(weights.y, x.y)
        + dot4I8Packed(weights.z, x.z) + dot4I8Packed(weights.w, x.w);
}
