// f16 values, written four at a time; `i` is a multiple of four.
//
// What WGSL packs of values beyond the largest is open, and one driver makes NaN of infinities: those
// are packed as zeros, and their bits put beside.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<f32>) {
    let bits = bitcast<vec4<u32>>(value);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let beyond = magnitude >= vec4<u32>(0x477ff000u);   // 65520: no finite f16 is as near
    let inside = select(value, vec4<f32>(), beyond);
    let infinity = ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u)) | vec4<u32>(0x7c00u);
    let nan = select(vec4<u32>(), vec4<u32>(0x200u), magnitude > vec4<u32>(0x7f800000u));
    let outside = select(vec4<u32>(), infinity | nan, beyond);
    buf[i / 4u] = vec2<u32>(
        pack2x16float(inside.xy) | outside.x | (outside.y << 16u),
        pack2x16float(inside.zw) | outside.z | (outside.w << 16u),
    );
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
