// Q4_0 as vec4: `i` counts vectors, eight to a block of four words: the first half are the low
// nibbles. A block's f16 scale lies in a plane of its own.

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load4(i: u32) -> vec4<f32> {
    let pair = unpack2x16float(buf_scales[i / 16u]);
    let word = buf_quants[(i / 8u) * 4u + (i & 3u)] >> (i & 4u);
    let quants = vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)) - 8.0;
    return quants * select(pair.x, pair.y, (i & 8u) != 0u);
}
