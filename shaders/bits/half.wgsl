// Values of two bytes as they lie, two in a word: for kernels that move values of any type.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_bits(i: u32) -> u32 {
    return (buf[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu;
}
