// Weights of any format, a group of 32 at a time.
// @import formats/dequant/q4_0 as weights
// @import lib/index/in_a_line

const buf_VEC4S: u32 = 8u;
const buf_PARTS: u32 = 1u;

fn buf_part(part: u32, values: ptr<function, array<vec4<f32>, 8>>) {
    weights_load32(part, values);
}
