// Values of rows in eight bits, as `q8_activations` makes them, four at a time: `i` counts vectors of four.

@group(0) @binding(0) var<storage, read> buf: array<u32>;

fn buf_load4(i: u32) -> vec4<f32> {
    let group = i / 8u * 12u;
    return vec4<f32>(unpack4xI8(buf[group + i % 8u])) * bitcast<f32>(buf[group + 8u]);
}
