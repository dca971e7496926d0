// y = numbers of the standard Gumbel distribution, -log(-log u).
// @import lib/random/draw
// @import lib/numeric/log

struct Params { size: u32, key_offset: u32, below: f32 }

fn draw(u: vec4<f32>) -> vec4<f32> {
    return -log_of(-log_of(u));
}
