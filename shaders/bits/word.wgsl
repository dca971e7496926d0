// Values of four bytes as they lie: for kernels that move values of any type and compute nothing.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_bits(i: u32) -> u32 {
    return buf[i];
}
