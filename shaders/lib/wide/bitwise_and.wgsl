// Bits that both words of 64 have.

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a & b;
}
