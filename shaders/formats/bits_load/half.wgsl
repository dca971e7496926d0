// Values of two bytes as they lie, two in a word.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> vec2<u32> {
    return vec2<u32>(extractBits(buf[i / 2u], (i % 2u) * 16u, 16u), 0u);
}
