// Bits of 64 that the first operand does not have.

fn buf_of(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return ~a;
}
