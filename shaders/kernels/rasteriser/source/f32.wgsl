// F32 weights, 8 at a time, see source/f16.
// @import kernels/rasteriser/lib/vectors_by_u64 as weights
// @import lib/index/in_a_line

const buf_VEC4S: u32 = 2u;
const buf_PARTS: u32 = 4u;

fn buf_pair(word: u64) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(u32(word), u32(word >> 32u)));
}

fn buf_part(part: u32, values: ptr<function, array<vec4<f32>, 2>>) {
    let words = weights[part];
    (*values)[0] = vec4<f32>(buf_pair(words.x), buf_pair(words.y));
    (*values)[1] = vec4<f32>(buf_pair(words.z), buf_pair(words.w));
}
