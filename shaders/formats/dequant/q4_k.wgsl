// Q4_K: value = quant · scale - minimum, both per 32 values, 6-bit, times d and dmin of a
// super-block of 256. Quants lie as in Q4_0: a vec4 of words per 32, nibbles low then high.
// @import lib/blocks/nibbles
// @import lib/blocks/k_place

@group(0) @binding(0) var<storage, read> buf_quants: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> buf_scales: array<vec4<u32>>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let words = buf_quants[group];
    let scale = k_scale_min_at(buf_scales[group / 8u], k_place(group & 7u));
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = low_nibbles(words[i]) * scale.x - scale.y;
        (*values)[i + 4u] = high_nibbles(words[i]) * scale.x - scale.y;
    }
}
