// y = numbers of a Laplace distribution.
// @import lib/random/draw
// @import lib/numeric/log1p

struct Params { size: u32, key_offset: u32, below: f32, low: f32, range: f32, loc: f32, scale: f32 }

fn draw(u: vec4<f32>) -> vec4<f32> {
    let side = u * params.range + params.low;
    return sign(side) * log1p_of(-abs(side)) * params.scale + params.loc;
}
