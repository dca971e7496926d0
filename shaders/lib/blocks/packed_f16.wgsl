// Four values as f16.
//
// What WGSL packs of values beyond the largest is open, and one driver makes NaN of infinities: those
// are packed as zeros, and their bits put beside.

fn packed_f16(value: vec4<f32>) -> vec2<u32> {
    let bits = bitcast<vec4<u32>>(value);
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let beyond = magnitude >= vec4<u32>(0x477ff000u);   // 65520: no finite f16 is as near
    let inside = select(value, vec4<f32>(), beyond);
    let infinity = ((bits >> vec4<u32>(16u)) & vec4<u32>(0x8000u)) | vec4<u32>(0x7c00u);
    let nan = select(vec4<u32>(), vec4<u32>(0x200u), magnitude > vec4<u32>(0x7f800000u));
    let outside = select(vec4<u32>(), infinity | nan, beyond);
    return vec2<u32>(
        pack2x16float(inside.xy) | outside.x | (outside.y << 16u),
        pack2x16float(inside.zw) | outside.z | (outside.w << 16u),
    );
}
