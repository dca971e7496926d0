// f16 values of a cache as vec4, read and written: `i` counts vectors.
// @import lib/blocks/packed_f16

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn buf_put4(i: u32, value: vec4<f32>) {
    buf[i] = packed_f16(value);
}
