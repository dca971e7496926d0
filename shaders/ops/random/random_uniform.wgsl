// y = random numbers, uniform from a low end up to another.
// @import lib/random/draw

struct Params { size: u32, key_offset: u32, below: f32, low: f32, range: f32 }

fn draw(u: vec4<f32>) -> vec4<f32> {
    // The maximum, far below every product, keeps a compiler from fusing product and sum.
    return max(u * params.range, vec4<f32>(-0x1.fffffep+127)) + params.low;
}
