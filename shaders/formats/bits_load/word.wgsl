// Values of four bytes as they lie: for kernels that move values of any type and compute nothing.
// All files of this folder give two words, of which narrower types leave the second empty, so a
// kernel is written once for all of them.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> vec2<u32> {
    return vec2<u32>(buf[i], 0u);
}
