// TQ2_0: value = (quant - 1) · scale, two bits each, an f16 scale per 256. Quants lie as in Q2_K.
// @import lib/blocks/bits2
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> buf_supers: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let block = group / 8u;
    let scale = half_at(buf_supers[block / 2u], block);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = (bits2(words.x, i) - 1.0) * scale;
        (*values)[i + 4u] = (bits2(words.y, i) - 1.0) * scale;
    }
}
