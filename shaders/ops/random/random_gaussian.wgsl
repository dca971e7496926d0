// y = normally distributed numbers: the inverse of their distribution, of numbers between two ends.
// @import lib/random/draw
// @import lib/numeric/error

struct Params {
    size: u32,
    key_offset: u32,
    below: f32,
    low: f32,
    range: f32,
    loc: f32,
    scale: f32,
    least: f32,
    most: f32,
}

fn draw(u: vec4<f32>) -> vec4<f32> {
    let normal = 1.4142135 * error_inverse(u * params.range + params.low);
    return clamp(normal, vec4<f32>(params.least), vec4<f32>(params.most)) * params.scale + params.loc;
}
