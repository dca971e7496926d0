// Eight values of a group of 32 in f16, as f16_activations makes it: `i` counts eights.

struct F16Column { low: vec4<f16>, high: vec4<f16>, scale: f32, squares: f32 }

@group(0) @binding(0) var<storage, read> buf: array<vec4<f16>>;
@group(0) @binding(0) var<storage, read> tails: array<vec4<f32>>;

alias buf_Column = F16Column;

fn buf_column(i: u32, lane: u32) -> F16Column {
    let part = i % 4u;
    let at = i / 4u * 10u + part * 2u;
    let tail = tails[i / 4u * 5u + 4u];
    return F16Column(buf[at], buf[at + 1u], tail.x, select(0.0, tail.w, part == 0u));
}
