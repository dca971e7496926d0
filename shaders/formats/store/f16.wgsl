// f16 values, written four at a time; `i` is a multiple of four.
// @import lib/blocks/packed_f16

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<f32>) {
    buf[i / 4u] = packed_f16(value);
}

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i / 4u];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

fn buf_load(i: u32) -> f32 {
    return buf_load4(i)[i % 4u];
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
