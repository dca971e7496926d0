// Q4_0 in vec4s, as formats/vec4/q4_0.wgsl, with the offset taken with the scale: nothing is rounded, as scales
// have eleven bits.

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load4(i: u32) -> vec4<f32> {
    let pair = unpack2x16float(buf_scales[i / 16u]);
    let word = buf_quants[(i / 8u) * 4u + (i & 3u)] >> (i & 4u);
    let scale = select(pair.x, pair.y, (i & 8u) != 0u);
    return fma(vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)), vec4<f32>(scale), vec4<f32>(-8.0 * scale));
}
