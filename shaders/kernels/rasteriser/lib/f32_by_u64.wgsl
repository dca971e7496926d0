// f32 values in vec4s, as formats/vec4/f32, but loaded as two words of 64 bits.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u64>>;

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i];
    let low = vec2<u32>(u32(words.x), u32(words.x >> 32u));
    let high = vec2<u32>(u32(words.y), u32(words.y >> 32u));
    return bitcast<vec4<f32>>(vec4<u32>(low, high));
}
