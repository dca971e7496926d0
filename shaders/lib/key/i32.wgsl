// Keys of i32, which compare as unsigned integers in the order of the values.

fn buf_of(value: vec4<i32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(value) ^ vec4<u32>(0x80000000u);
}

fn buf_unordered(value: vec4<i32>) -> vec4<bool> {
    return vec4<bool>();
}
