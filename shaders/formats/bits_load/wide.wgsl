// Values of eight bytes as they lie, two words each.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_load(i: u32) -> vec2<u32> {
    return buf[i];
}
