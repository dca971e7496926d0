// bf16 values as vec4: `i` counts vectors.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i];
    let bits = vec4<u32>(words.x << 16u, words.x, words.y << 16u, words.y);
    return bitcast<vec4<f32>>(bits & vec4<u32>(0xffff0000u));
}
