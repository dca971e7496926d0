// Q4_1: value = quant · scale + minimum. A block of 32 is a vec4 of words, nibbles low then high,
// and a word with both f16 in a plane of its own.
// @import lib/blocks/nibbles

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let scale = unpack2x16float(buf_scales[group]);
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = low_nibbles(words[i]) * scale.x + scale.y;
        (*values)[i + 4u] = high_nibbles(words[i]) * scale.x + scale.y;
    }
}
