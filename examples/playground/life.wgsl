// Conway's Game of Life. memory.x is 1 where a cell lives; what has died fades away.
// @import canvas

fn alive(at: vec2<i32>) -> f32 {
    return before(at).memory.x;
}

fn pixel(at: vec2<i32>, frame: u32) -> Pixel {
    var around = 0.0;
    for (var i = 0; i < 9; i++) {
        if i != 4 {
            around += alive(at + vec2<i32>(i % 3 - 1, i / 3 - 1));
        }
    }
    let lives = around == 3.0 || (around == 2.0 && alive(at) == 1.0);
    var is = select(0.0, 1.0, lives);
    if frame == 0u {
        is = step(random(at), 0.28);
    }
    let trail = max(is, 0.94 * before(at).memory.y);
    let dead = vec3<f32>(0.10, 0.16, 0.42) * trail + vec3<f32>(0.03, 0.03, 0.05);
    let colour = mix(dead, vec3<f32>(0.98, 0.82, 0.45), is);
    return Pixel(vec4<f32>(colour, 1.0), vec4<f32>(is, trail, 0.0, 0.0));
}
