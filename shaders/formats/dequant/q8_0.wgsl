// Q8_0: value = quant · scale. A block of 32 is two vec4 of words, and an f16 scale in a plane of
// its own.

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_scale(group: u32) -> f32 {
    let pair = unpack2x16float(buf_scales[group / 2u]);
    return select(pair.x, pair.y, (group & 1u) == 1u);
}

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let first = buf_quants[group * 2u];
    let second = buf_quants[group * 2u + 1u];
    let scale = buf_scale(group);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = vec4<f32>(unpack4xI8(first[i])) * scale;
        (*values)[i + 4u] = vec4<f32>(unpack4xI8(second[i])) * scale;
    }
}
