// Elements of eight bytes as pairs of words, to be copied.

@group(0) @binding(0) var<storage, read> buf: array<vec2<u32>>;

fn buf_gather4(i: vec4<u32>) -> array<vec2<u32>, 4> {
    return array<vec2<u32>, 4>(buf[i.x], buf[i.y], buf[i.z], buf[i.w]);
}
