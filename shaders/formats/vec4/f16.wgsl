// f16 values as vec4: `i` counts vectors.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
