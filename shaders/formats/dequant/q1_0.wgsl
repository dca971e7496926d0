// Q1_0: value = ±scale, a bit each, 1 for plus; an f16 scale per 128. A group of 32 is a word.
// @import lib/blocks/half_at

@group(0) @binding(0) var<storage, read> buf_quants: array<u32>;
@group(0) @binding(1) var<storage, read> buf_scales: array<u32>;

fn buf_load32(group: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    let bits = buf_quants[group];
    let block = group / 4u;
    let scale = half_at(buf_scales[block / 2u], block);
    // @unroll
    for (var i = 0u; i < 8u; i++) {
        let set_i = (vec4<u32>(bits >> (4u * i)) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>(0u);
        (*values)[i] = select(vec4<f32>(-scale), vec4<f32>(scale), set_i);
    }
}
