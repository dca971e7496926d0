// Q8_0 in vec4s, as formats/vec4/q8_0.wgsl: for hardware, which makes floats of bytes without a sign in one
// instruction, and takes the offset with the scale. Nothing is rounded, as scales have eleven bits.

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load4(i: u32) -> vec4<f32> {
    let pair = unpack2x16float(buf_scales[i / 16u]);
    let scale = select(pair.x, pair.y, (i & 8u) != 0u);
    return fma(vec4<f32>(unpack4xU8(buf_quants[i] ^ 0x80808080u)), vec4<f32>(scale), vec4<f32>(-128.0 * scale));
}
