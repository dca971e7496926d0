// Bits that one of two words of 64 has, or both.

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a | b;
}
