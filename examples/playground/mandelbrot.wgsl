// The Mandelbrot set, nearer with every frame.
// @import canvas

const ROUNDS: u32 = 200u;

fn pixel(at: vec2<i32>, frame: u32) -> Pixel {
    let zoom = 1.6 * exp2(-f32(frame) / 40.0);
    let c = vec2<f32>(-0.7436, 0.1318) + zoom * (2.0 * vec2<f32>(at) / f32(params.side) - 1.0);
    var z = vec2<f32>(0.0);
    var rounds = 0u;
    while rounds < ROUNDS && dot(z, z) < 16.0 {
        z = vec2<f32>(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        rounds++;
    }
    if rounds == ROUNDS {
        return Pixel(vec4<f32>(0.02, 0.02, 0.06, 1.0), vec4<f32>(0.0));
    }
    let smooth_rounds = f32(rounds) - log2(max(log2(dot(z, z)), 1.0));
    let phase = 0.28 * sqrt(max(smooth_rounds, 0.0)) * vec3<f32>(1.0, 1.25, 1.6);
    return Pixel(vec4<f32>(0.5 - 0.5 * cos(phase * 3.0), 1.0), vec4<f32>(0.0));
}
