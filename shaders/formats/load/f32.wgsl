// f32 values, read one at a time or four from any index.

@group(0) @binding(0) var<storage, read> buf: array<f32>;

fn buf_load(i: u32) -> f32 {
    return buf[i];
}

fn buf_load4(i: u32) -> vec4<f32> {
    return vec4<f32>(buf[i], buf[i + 1u], buf[i + 2u], buf[i + 3u]);
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf[i.x], buf[i.y], buf[i.z], buf[i.w]);
}
