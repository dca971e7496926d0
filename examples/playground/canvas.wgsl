// A square of pixels; each has a colour and four numbers of its own, and all are made anew at once.
// The file that imports this brings `fn pixel(at: vec2<i32>, frame: u32) -> Pixel`.
const WG: u32 = 64u;

struct Pixel { colour: vec4<f32>, memory: vec4<f32> }
struct Params { side: u32, step: u32 }

@group(0) @binding(0) var<storage, read> x: array<Pixel>;
@group(0) @binding(1) var<storage, read> clock: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Pixel>;
@group(0) @binding(3) var<uniform> params: Params;

// What a pixel was before; beyond an edge lies the opposite one.
fn before(at: vec2<i32>) -> Pixel {
    let side = i32(params.side);
    let around = (at + side) % side;
    return x[around.y * side + around.x];
}

// A random number from 0 to 1, another for each pixel.
fn random(at: vec2<i32>) -> f32 {
    var h = u32(at.x) * 0x9E3779B1u + u32(at.y) * 0x85EBCA77u;
    h = (h ^ (h >> 15u)) * 0x2C1B3C6Du;
    h = (h ^ (h >> 12u)) * 0x297A2D39u;
    return f32((h ^ (h >> 15u)) >> 8u) / 16777216.0;
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < params.side * params.side {
        let at = vec2<i32>(i32(i % params.side), i32(i / params.side));
        y[i] = pixel(at, clock[0] + params.step);
    }
}
