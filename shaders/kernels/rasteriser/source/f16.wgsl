// F16 weights, 16 at a time. Two such parts are a group.
// @import kernels/rasteriser/lib/vectors_by_u64 as weights
// @import lib/index/in_a_line

const buf_VEC4S: u32 = 4u;
const buf_PARTS: u32 = 2u;

fn buf_spread(word: u64) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(u32(word)), unpack2x16float(u32(word >> 32u)));
}

fn buf_part(part: u32, values: ptr<function, array<vec4<f32>, 4>>) {
    let words = weights[part];
    // @unroll
    for (var i = 0u; i < 4u; i++) {
        (*values)[i] = buf_spread(words[i]);
    }
}
