// BF16 weights, 16 at a time, see source/f16.
// @import kernels/rasteriser/lib/vectors_by_u64 as weights
// @import lib/index/in_a_line

const buf_VEC4S: u32 = 4u;
const buf_PARTS: u32 = 2u;

fn buf_spread(word: u64) -> vec4<f32> {
    let low = u32(word);
    let high = u32(word >> 32u);
    let bits = vec4<u32>(low << 16u, low, high << 16u, high);
    return bitcast<vec4<f32>>(bits & vec4<u32>(0xffff0000u));
}

fn buf_part(part: u32, values: ptr<function, array<vec4<f32>, 4>>) {
    let words = weights[part];
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = buf_spread(words[i]);
    }
}
