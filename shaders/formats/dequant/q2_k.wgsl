// Q2_K: value = quant · scale - minimum, both per 16 values, 4-bit, times d and dmin of a
// super-block of 256. The two-bit quants of 16 values are a word.
// @import lib/blocks/bits2

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> buf_supers: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 8u;
    let bytes = buf_scales[block][(group & 7u) / 2u] >> ((group & 1u) * 16u);
    let both = vec4<u32>(bytes, bytes >> 4u, bytes >> 8u, bytes >> 12u) & vec4<u32>(15u);
    let scale = vec4<f32>(both) * unpack2x16float(buf_supers[block]).xyxy;
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = bits2(words.x, i) * scale.x - scale.y;
        (*values)[i + 4u] = bits2(words.y, i) * scale.z - scale.w;
    }
}
