// Q8_0 as vec4: `i` counts vectors, eight to a block, whose f16 scale lies in a plane of its own.

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load4(i: u32) -> vec4<f32> {
    let pair = unpack2x16float(buf_scales[i / 16u]);
    return vec4<f32>(unpack4xI8(buf_quants[i])) * select(pair.x, pair.y, (i & 8u) != 0u);
}
