// Two substances that react and spread, as Gray and Scott have it (Pearson 1993, "Complex Patterns
// in a Simple System"). memory.xy is how much there is of each.
// @import canvas

const FEED: f32 = 0.037;
const KILL: f32 = 0.060;
const SPREAD: vec2<f32> = vec2<f32>(1.0, 0.5);

fn amounts(at: vec2<i32>) -> vec2<f32> {
    return before(at).memory.xy;
}

fn pixel(at: vec2<i32>, frame: u32) -> Pixel {
    let here = amounts(at);
    let straight = amounts(at + vec2(1, 0)) + amounts(at - vec2(1, 0))
        + amounts(at + vec2(0, 1)) + amounts(at - vec2(0, 1));
    let slanted = amounts(at + vec2(1, 1)) + amounts(at - vec2(1, 1))
        + amounts(at + vec2(1, -1)) + amounts(at - vec2(1, -1));
    let flow = 0.2 * straight + 0.05 * slanted - here;
    let reaction = here.x * here.y * here.y;
    var next = here + SPREAD * flow
        + vec2<f32>(FEED * (1.0 - here.x) - reaction, reaction - (FEED + KILL) * here.y);
    if frame == 0u {
        let cell = at / 16;
        let wet = random(cell) < 0.1 || all(cell == vec2(i32(params.side) / 32));
        let radius = 4.0 + 3.0 * random(cell + 99);
        let inside = length(vec2<f32>(at - cell * 16 - 8)) < radius;
        let drop = select(0.0, 1.0, wet && inside);
        next = vec2<f32>(1.0 - 0.5 * drop, 0.25 * drop + 0.02 * random(at));
    }
    let depth = clamp(3.2 * next.y, 0.0, 1.0);
    let colour = mix(vec3<f32>(0.04, 0.05, 0.12), vec3<f32>(0.20, 0.75, 0.80), depth)
        + vec3<f32>(0.75, 0.45, 0.10) * smoothstep(0.75, 1.0, depth);
    return Pixel(vec4<f32>(colour, 1.0), vec4<f32>(next, 0.0, 0.0));
}
