// u32 values, written four at a time; `i` is a multiple of four.

@group(0) @binding(0) var<storage, read_write> buf: array<vec4<u32>>;

fn buf_store4(i: u32, value: vec4<u32>) {
    buf[i / 4u] = value;
}

fn buf_load4(i: u32) -> vec4<u32> {
    return buf[i / 4u];
}

fn buf_load(i: u32) -> u32 {
    return buf[i / 4u][i % 4u];
}

fn buf_gather4(i: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(buf_load(i.x), buf_load(i.y), buf_load(i.z), buf_load(i.w));
}
