// f16 values of a cache in vec4s: `i` counts vectors.

@group(0) @binding(0) var<storage, read> buf: array<vec4<f16>>;

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf[i]);
}
