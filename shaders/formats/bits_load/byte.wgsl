// Values of one byte as they lie, four in a word.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load(i: u32) -> vec2<u32> {
    return vec2<u32>(extractBits(buf[i / 4u], (i % 4u) * 8u, 8u), 0u);
}
