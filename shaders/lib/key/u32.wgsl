// Keys of u32: the values themselves.

fn buf_of(value: vec4<u32>) -> vec4<u32> {
    return value;
}

fn buf_unordered(value: vec4<u32>) -> vec4<bool> {
    return vec4<bool>();
}
