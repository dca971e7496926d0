// Q2_0: value = (code - 1) · scale, two bits each, the first lowest; an f16 scale per 64. A group of
// 32 is two words.
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 2u;
    let scale = half_at(buf_scales[block / 2u], block);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        let shifts = vec4<u32>(8u * i) + vec4<u32>(0u, 2u, 4u, 6u);
        let first = (vec4<u32>(words.x) >> shifts) & vec4<u32>(3u);
        let second = (vec4<u32>(words.y) >> shifts) & vec4<u32>(3u);
        (*values)[i] = (vec4<f32>(first) - 1.0) * scale;
        (*values)[i + 4u] = (vec4<f32>(second) - 1.0) * scale;
    }
}
