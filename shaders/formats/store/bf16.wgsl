// bf16 values, rounded to nearest even and written four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_round(value: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(value);
    let rounded = (bits + 0x7fffu + ((bits >> vec4<u32>(16u)) & vec4<u32>(1u))) >> vec4<u32>(16u);
    let is_nan = (bits & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    return select(rounded, (bits >> vec4<u32>(16u)) | vec4<u32>(0x40u), is_nan);
}

fn buf_store4(i: u32, value: vec4<f32>) {
    let half = buf_round(value);
    buf[i / 4u] = vec2<u32>(half.x | (half.y << 16u), half.z | (half.w << 16u));
}

fn buf_load4(i: u32) -> vec4<f32> {
    let words = buf[i / 4u];
    let bits = vec4<u32>(words.x << 16u, words.x, words.y << 16u, words.y);
    return bitcast<vec4<f32>>(bits & vec4<u32>(0xffff0000u));
}

fn buf_load(i: u32) -> f32 {
    return buf_load4(i)[i % 4u];
}

fn buf_gather4(i: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
