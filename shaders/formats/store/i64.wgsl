// i64 values of i32, written four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec2<u32>>;

fn buf_store4(i: u32, value: vec4<i32>) {
    for (var k = 0u; k < 4u; k++) {
        buf[i + k] = vec2<u32>(bitcast<u32>(value[k]), bitcast<u32>(value[k] >> 31u));
    }
}

fn buf_load(i: u32) -> i32 {
    return bitcast<i32>(buf[i].x);
}

fn buf_load4(i: u32) -> vec4<i32> {
    return vec4<i32>(buf_load(i), buf_load(i + 1u), buf_load(i + 2u), buf_load(i + 3u));
}

fn buf_gather4(i: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
