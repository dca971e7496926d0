// f32 values as vec4: `i` counts vectors.

@group(0) @binding(0) var<storage, read> buf: array<vec4<f32>>;

fn buf_load4(i: u32) -> vec4<f32> {
    return buf[i];
}
